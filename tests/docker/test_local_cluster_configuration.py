from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from local_cluster import configuration, daemons
from local_cluster.configuration import Machine
from local_cluster.errors import ClusterError
from local_cluster.imitation import Imitation, load_imitation
from local_cluster.layout import Layout
from local_cluster.settings import Settings, Size, port_names

MACHINE = Machine(host="laptop", user="ada", slurm_version=(22, 5), openssh_version=(9, 2))


def make_settings(**size: int) -> Settings:
    chosen = Size(**size)
    return Settings(chosen, {name: 20000 + number for number, name in enumerate(port_names(chosen))})


def values(text: str, name: str) -> list[str]:
    return [line.split("=", 1)[1] for line in text.splitlines() if line.startswith(f"{name}=")]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.at(tmp_path / "cluster")


def test_a_path_that_slurm_does_not_support_names_what_sets_it(tmp_path: Path) -> None:
    with pytest.raises(
        ClusterError, match="--dir of this program, or with AIRFLOW_MEGATRON_LOCAL for Airflow"
    ):
        Layout.at(tmp_path / "a home" / "cluster")


def test_each_node_has_its_own_port_and_gpus(layout: Layout) -> None:
    settings = make_settings(nodes=3, gpus_per_node=2)
    nodes = values(configuration.slurm_conf(layout, settings, MACHINE), "NodeName")
    assert [node.split()[0] for node in nodes] == ["n1", "n2", "n3"]
    assert len({re.search(r"Port=(\d+)", node)[1] for node in nodes}) == 3  # type: ignore[index]
    assert all("Gres=gpu:2" in node and "NodeHostname=laptop" in node for node in nodes)
    gres = configuration.gres_conf(layout, settings.size)
    assert f"NodeName=n3 Name=gpu File={layout.gpus}/n3-gpu[0-1]" in gres.splitlines()


def test_without_gpus_none_are_declared(layout: Layout) -> None:
    settings = make_settings(gpus_per_node=0)
    text = configuration.slurm_conf(layout, settings, MACHINE)
    assert not re.search(r"gres", text, re.IGNORECASE)
    assert "Name=" not in configuration.gres_conf(layout, settings.size)


def test_partitions_have_one_default_and_every_node(layout: Layout) -> None:
    text = configuration.slurm_conf(layout, make_settings(nodes=2), MACHINE)
    partitions = values(text, "PartitionName")
    assert [line.split()[0] for line in partitions] == ["main", "short", "preemptable"]
    assert ["Default=YES" in line for line in partitions] == [True, False, False]
    assert all("Nodes=n1,n2 " in line for line in partitions)


def test_no_option_is_given_twice(layout: Layout) -> None:
    text = configuration.slurm_conf(layout, make_settings(), MACHINE)
    names = [line.partition("=")[0] for line in text.splitlines() if not line.startswith("#")]
    once = [name for name in names if name not in {"NodeName", "PartitionName"}]
    assert len(once) == len(set(once))


@pytest.mark.parametrize(
    ("version", "plugin"),
    [((21, 8), "cgroup/v1"), ((22, 5), "cgroup/v1"), ((23, 2), "disabled"), ((24, 11), "disabled")],
)
def test_cgroups_are_left_out_as_far_as_the_release_can(version: tuple[int, int], plugin: str) -> None:
    machine = Machine("laptop", "ada", slurm_version=version, openssh_version=(9, 2))
    assert values(configuration.cgroup_conf(machine), "CgroupPlugin") == [plugin]


@pytest.mark.parametrize("password", ["", "it's", "abc\\", "ABC", "x'; DROP DATABASE slurm_acct_db; --"])
def test_only_a_hexadecimal_password_reaches_sql(password: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        configuration.database_grants(password)


@pytest.mark.parametrize(
    ("files", "options"),
    [((), []), (("job_state",), ["-i"]), (("job_state", "assoc_usage"), [])],
    ids=["first start", "killed before its first complete save", "later"],
)
def test_slurmctld_continues_after_an_early_kill(
    files: tuple[str, ...], options: list[str], layout: Layout
) -> None:
    layout.controller_state.mkdir(parents=True)
    for name in files:
        (layout.controller_state / name).touch()
    assert daemons.controller_tolerance(layout) == options


def test_a_machine_without_a_network_is_refused(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_addresses(*words: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", without_addresses)
    with pytest.raises(ClusterError, match="ip link add slurm0 type veth"):
        daemons.describe_machine(layout)


def test_slurmdbd_need_not_create_its_database() -> None:
    """With Debian 13, slurmdbd ends after it has created the database itself."""
    comment, first, *_ = configuration.database_grants("abc123").splitlines()
    assert comment.startswith("#")
    assert first == "CREATE DATABASE IF NOT EXISTS slurm_acct_db;"


def test_sshd_accepts_one_user_by_key_only(layout: Layout) -> None:
    text = configuration.sshd_config(layout, make_settings(), MACHINE)
    lines = text.splitlines()
    assert "AllowUsers ada" in lines
    assert "PasswordAuthentication no" in lines
    assert "StrictModes yes" in lines
    assert "KexAlgorithms -sntrup761*,mlkem768*" in lines
    assert f"SetEnv SHLVL=1 SLURM_CONF={layout.slurm_conf}" in lines
    assert not any(line.startswith(("MaxStartups", "MaxSessions", "PerSource")) for line in lines)


def test_sshd_penalties_are_off_where_they_exist(layout: Layout) -> None:
    machine = Machine("laptop", "ada", slurm_version=(24, 11), openssh_version=(10, 0))
    assert "PerSourcePenalties no" in configuration.sshd_config(layout, make_settings(), machine).splitlines()


def test_sshd_itself_accepts_the_configuration(layout: Layout) -> None:
    from local_cluster import credentials
    from local_cluster.packages import missing_packages, program

    if {"openssh-server", "openssh-client", "slurmctld"} & set(missing_packages()):
        pytest.skip("OpenSSH and Slurm are not installed")
    layout.make_directories()
    try:
        settings = make_settings()
        credentials.make_ssh_keys(layout, settings.ports["sshd"])
        layout.sshd_config.write_text(
            configuration.sshd_config(layout, settings, daemons.describe_machine(layout))
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        result = subprocess.run(
            [program("sshd"), "-t", "-f", str(layout.sshd_config)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        layout.spool.rmdir()
        layout.runtime.rmdir()
    assert (result.returncode, result.stderr) == (0, "")


def test_task_prolog_adds_only_what_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "prolog.sh"
    script.write_text(configuration.task_prolog({"PATH": "/usr/bin:/bin", "HOME": "/home/o'brien"}))
    environment = {"PATH": os.defpath}
    result = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "export HOME=/home/o'brien\n"


def test_sockets_fit_into_an_address_however_deep_the_clone_lies(tmp_path: Path) -> None:
    layout = Layout.at(tmp_path / ("deep/" * 60) / "cluster")
    longest = layout.spool / "n64" / "n64_4294967295.4294967291"
    assert len(os.fsencode(longest)) < 108
    assert len(os.fsencode(layout.munge_socket)) < 108


def test_two_directories_have_two_runtime_directories(tmp_path: Path) -> None:
    assert Layout.at(tmp_path / "a").runtime != Layout.at(tmp_path / "b").runtime
    assert Layout.at(tmp_path / "a").runtime == Layout.at(tmp_path / "x" / ".." / "a").runtime


@pytest.mark.parametrize("name", ["my cluster", "a,b", "n[1-2]", "50%", "#1", "a\nb", 'say "x"'])
def test_a_path_that_slurm_cannot_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="--dir"):
        Layout.at(tmp_path / name)


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_runtime_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    runtime.chmod(mode)
    with pytest.raises(ClusterError, match="private"):
        Layout(tmp_path / "cluster", runtime).make_directories()


def test_a_runtime_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime = tmp_path / "runtime"
    runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match="private"):
        Layout(tmp_path / "cluster", runtime).make_directories()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])
def test_slurm_listens_at_the_loopback_address_of_the_hosts_name(address: str, layout: Layout) -> None:
    """Debian names a host 127.0.1.1 in /etc/hosts; others reach neither."""
    machine = dataclasses.replace(MACHINE, address=address, only_loopback=True)
    settings = make_settings(nodes=2)
    slurm = configuration.slurm_conf(layout, settings, machine)
    database = configuration.slurmdbd_conf(layout, settings, machine, "00")
    for text in (slurm, database):
        assert values(text, "CommunicationParameters") == ["NoCtldInAddrAny,NoInAddrAny"]
    assert values(slurm, "SlurmctldHost") == [f"laptop({address})"]
    assert all(f"NodeAddr={address} " in node for node in values(slurm, "NodeName"))
    assert values(slurm, "AccountingStorageHost") == values(database, "DbdAddr") == [address]


def test_slurm_listens_at_all_addresses_where_the_hosts_name_means_another(layout: Layout) -> None:
    settings = make_settings()
    for text in (
        configuration.slurm_conf(layout, settings, MACHINE),
        configuration.slurmdbd_conf(layout, settings, MACHINE, "00"),
    ):
        assert values(text, "CommunicationParameters") == []


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o750, 0o700])
def test_the_clusters_directory_is_closed_to_others(mode: int, tmp_path: Path) -> None:
    layout = Layout.at(tmp_path / "cluster")
    layout.directory.mkdir()
    layout.directory.chmod(mode)
    layout.make_own_directory()
    assert layout.directory.stat().st_mode & 0o777 == 0o700


def test_an_imitated_site_replaces_partitions_and_adds_a_filter_and_absent_nodes(layout: Layout) -> None:
    imitation = Imitation(
        "site",
        {"batch": "Default=YES MaxNodes=92"},
        absent_nodes=92,
        features=["nvme"],
        gpu_requests=False,
        filter="return slurm.SUCCESS",
        sshd={"MaxStartups": "2:100:2"},
    )
    settings = make_settings(nodes=2, gpus_per_node=4)
    text = configuration.slurm_conf(layout, settings, MACHINE, imitation)
    (partition,) = values(text, "PartitionName")
    assert partition == "batch Nodes=n1,n2,absent[1-92] State=UP Default=YES MaxNodes=92"
    assert all("Feature=nvme" in node and "Gres" not in node for node in values(text, "NodeName"))
    assert values(text, "JobSubmitPlugins") == ["lua"]
    assert "Name=" not in configuration.gres_conf(layout, settings.size, imitation)
    sshd = configuration.sshd_config(layout, settings, MACHINE, imitation).splitlines()
    assert sshd[1] == "MaxStartups 2:100:2"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"site": "x", "partitions": {}}', '{"site": "x", "partition": {"a": ""}}', '{"site": "x"}'],
)
def test_an_invalid_description_of_a_site_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text(text)
    with pytest.raises(ClusterError, match=r"site.json is not a valid description of a site \("):
        load_imitation(tmp_path / "site.json")
