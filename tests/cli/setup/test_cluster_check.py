"""``cluster check`` with a real sshd and short stand-ins for Slurm's commands; on a real Slurm: test_slurm_protocol."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.cli.runs.login_node import NoConnectionError, command_line_hook
from airflow_megatron.cli.setup.cluster_check import FAILED, OK, WARNING, job_rows, login_rows, partition_rows
from airflow_megatron.spec.model.schema import PartitionSection, StorageSection

if TYPE_CHECKING:
    from pathlib import Path

    from login_site import LoginSite

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

SBATCH = """\
[ "$1" != --version ] || { echo slurm 23.11.4; exit; }
script=$(mktemp)
cat >"$script"
output=$(sed -n 's/^#SBATCH --output=//p' "$script")
cd "$(sed -n 's/^#SBATCH --chdir=//p' "$script")" || exit
SLURM_JOB_ID=77 bash "$script" >"$output" 2>&1
echo 77
"""
SINFO = """\
[ "$1" != --version ] || { echo slurm 23.11.4; exit; }
echo 'main|up|64|gpu:a100:4'
echo 'old|down|16|(null)'
"""
ANSWERS = {
    "login": ["ada@login1"],
    "clock": ["1000"],
    **{name: ["slurm 23.11.4"] for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo")},
    "sacct": ["ok"],
    "partition": ["main|up|64|gpu:a100:4"],
    "root": ["ok"],
}


def rows_of(site: LoginSite, *words: str, status: int = 0) -> dict[str, dict[str, Any]]:
    answer = site.call("cluster", "check", "site", "--format", "json", *words)
    assert answer.status == status, answer
    return {row["what"]: row for row in json.loads(answer.stdout)}


@pytest.fixture
def ready(site: LoginSite) -> LoginSite:
    """A site where the job's Python has torch and megatron-core, as far as the check tests this."""
    for name, text in (("sbatch", SBATCH), ("sinfo", SINFO)):
        site.command(name, text)
    for name in ("squeue", "scancel", "scontrol"):
        site.command(name, '[ "$1" != --version ] || echo slurm 23.11.4')
    python, programs = site.place / "python", site.place / "cluster programs"
    programs.mkdir()
    (programs / "pretrain_gpt.py").touch()
    python.write_text(
        "#!/bin/sh\ncase $2 in\n *torch*) echo 2.13.0 GPUs: 0 ;;\n *core*) echo megatron-core 0.16.1 ;;\n"
        " *) echo Python 3.11.2 ;;\nesac\n"
    )
    python.chmod(0o755)
    profile = site.place / "sbatch" / "clusters" / "site.yaml"
    text = (
        profile.read_text()
        .replace("/usr/bin/python3", str(python))
        .replace("/opt/Megatron-LM", str(programs))
    )
    profile.write_text(text + "slurm: {partition: main}\n")
    return site


@pytest.mark.slow
def test_a_cluster_that_is_ready(ready: LoginSite) -> None:
    answer = ready.call("cluster", "check", "site")
    assert answer.status == 0, answer
    lines = answer.stdout.splitlines()
    assert lines[-1] == "site: ready"
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert "main: 64 CPUs, gpu:a100:4" in answer.stdout
    assert "megatron-core 0.16.1" in answer.stdout
    assert [*(ready.runs / "cluster_check").iterdir()] == []


@pytest.mark.slow
def test_each_failure_is_reported_with_a_fix(ready: LoginSite) -> None:
    profile = ready.place / "sbatch" / "clusters" / "site.yaml"
    profile.write_text(profile.read_text().replace("partition: main", "partition: gpu"))
    (ready.place / "cluster programs" / "pretrain_gpt.py").unlink()
    ready.command("sacct", "echo accounting storage is disabled >&2; exit 1")
    rows = rows_of(ready, "--no-job", status=1)
    assert (rows["partition"]["state"], rows["partition"]["fix"]) == (FAILED, "one of: main, old")
    assert (rows["programs"]["state"], rows["programs"]["fix"]) == (
        FAILED,
        "airflow-megatron cluster install site",
    )
    assert rows["accounting"]["state"] == WARNING
    assert rows["run root"]["state"] == OK


@pytest.mark.slow
def test_the_quotas_of_the_site(ready: LoginSite) -> None:
    profile = ready.place / "sbatch" / "clusters" / "site.yaml"
    text = profile.read_text()
    profile.write_text(
        text + 'storage: {quota: "echo \\"it\'s  $((2 + 1)) TB\\"; cat; seq 100 >&2", purge_after: 30d}\n'
    )
    answer = ready.call("cluster", "check", "site", "--no-job")
    assert answer.status == 0, answer
    lines = [line.split(None, 2)[1:] for line in answer.stdout.splitlines()[:-1]]
    assert [said for what, said in lines if what == "quota"][:3] == ["it's  3 TB", "1", "2"]
    assert sum(what == "quota" for what, _ in lines) == 20
    assert [said for what, said in lines if what == "purge"] == [
        "the site deletes files without access for 30 days"
    ]
    assert "GiB and" in next(said for what, said in lines if what == "free")
    profile.write_text(text + "storage: {quota: 'echo unknown user; exit 3'}\n")
    answer = ready.call("cluster", "check", "site", "--no-job")
    assert "ends with status 3" in answer.stdout


@pytest.mark.slow
def test_a_job_that_sbatch_refuses_or_that_waits_too_long(ready: LoginSite) -> None:
    ready.command(
        "sbatch", '[ "$1" != --version ] || { echo slurm 1; exit; }\necho Invalid account >&2; exit 1'
    )
    rows = rows_of(ready, status=1)
    assert "Invalid account" in rows["job"]["detail"]
    ready.command("sbatch", '[ "$1" != --version ] || { echo slurm 1; exit; }\necho 78')
    ready.command(
        "squeue",
        '[ "$1" != --version ] || { echo slurm 1; exit; }\ncase "$*" in *%r*) echo "PENDING (Priority)" ;; esac',
    )
    rows = rows_of(ready, "--wait", "1", status=1)
    assert "job 78 was PENDING (Priority)" in rows["job"]["detail"]


@pytest.mark.slow
def test_a_plug_in_that_renames_jobs(ready: LoginSite) -> None:
    ready.command(
        "squeue",
        '[ "$1" != --version ] || { echo slurm 1; exit; }\ncase "$*" in *%j*) echo "prj-42_x" ;; esac',
    )
    row = rows_of(ready, status=1)["job name"]
    assert row["detail"].startswith("Slurm calls job 77 prj-42_x, not cluster_check.")
    assert "job_submit plug-in" in row["fix"]


@pytest.mark.slow
@pytest.mark.parametrize("given", [None, "no key"])
def test_a_host_key_that_is_not_known_is_shown(
    given: str | None, site: LoginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = json.loads(site.connection())
    connection["extra"]["host_key"] = given
    connection["extra"]["known_hosts"] = str(site.place / "none")
    (site.place / "none").touch()
    monkeypatch.setenv("AIRFLOW_CONN_SLURM_SITE", json.dumps(connection))
    rows = rows_of(site, status=1)
    assert rows["connection"]["state"] == FAILED
    # a connection with a host_key reads no known_hosts, so the fix must hold for both
    assert f'"host_key": "{site.server.public_host_key}"' in rows["connection"]["fix"]


@pytest.mark.slow
def test_a_connection_that_airflow_lacks(site: LoginSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SLURM_SITE")
    row = rows_of(site, status=1)["connection"]
    assert (row["state"], "airflow connections add" in row["detail"]) == (FAILED, False), row
    assert row["fix"].startswith("Add it: airflow connections add slurm_site ")


def test_the_home_of_airflow_is_named_if_its_variable_is_not_set(
    cluster: ClusterProfile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NoConnectionError, match=re.escape(f"AIRFLOW_HOME is {tmp_path}/airflow. Add it: ")):
        command_line_hook(cluster)


class TestLoginRows:
    def found(self, profile: ClusterProfile, **changes: list[str]) -> dict[str, Any]:
        return {row.what: row for row in login_rows(profile, {**ANSWERS, **changes}, 1010.0)}

    def test_all_is_well(self, cluster: ClusterProfile) -> None:
        assert {row.state for row in self.found(cluster).values()} == {OK}

    def test_a_command_that_is_not_found(self, cluster: ClusterProfile) -> None:
        row = self.found(cluster, sbatch=["sh: 1: sbatch: not found"])["sbatch"]
        assert row.state == FAILED
        assert "slurm_bin" in row.fix

    def test_a_run_root_that_is_read_only(self, cluster: ClusterProfile) -> None:
        row = self.found(cluster, root=["mkdir: Read-only file system"])["run root"]
        assert (row.state, row.detail) == (FAILED, "/scratch/runs: mkdir: Read-only file system")

    def test_a_file_system_that_is_almost_full(self, cluster: ClusterProfile) -> None:
        files = "vast/a 100 96 4 96% /scratch with a space"
        row = self.found(cluster, space=["vast/a 1048576000 1 524288000 50% /scratch"], files=[files])["free"]
        assert (row.state, row.detail) == (
            WARNING,
            "500 GiB and 4 files on the file system of /scratch/runs, which is 96 % full",
        )
        assert "airflow-megatron delete" in row.fix

    @pytest.mark.parametrize(
        ("space", "files"),
        [("x 64 44 20 69% /s", "x 100 1 99 1% /s"), ("x 1000000000 1 999999999 1% /s", "x 9 9 0 100% /s")],
    )
    def test_a_file_system_without_room_for_a_job(
        self, cluster: ClusterProfile, space: str, files: str
    ) -> None:
        """An empty file can be created on a full disk, but no job can write its log."""
        row = self.found(cluster, space=[space], files=[files])["free"]
        assert row.state == FAILED
        assert "airflow-megatron delete" in row.fix

    def test_a_file_system_that_does_not_count_files(self, cluster: ClusterProfile) -> None:
        space = "x 1048576000 1 524288000 50% /scratch"
        for files in ("x 0 0 0 - /scratch", "x - - - - /scratch", ""):
            row = self.found(cluster, space=[space], files=[files])["free"]
            assert (row.state, row.detail) == (OK, "500 GiB on the file system of /scratch/runs")
        assert "free" not in self.found(cluster, space=["df: no such directory"])

    def test_results_of_the_checks_of_files(self, cluster: ClusterProfile) -> None:
        storage = StorageSection(
            quota="quota", purge_after="30d", source="https://site.example", read="2026-11"
        )
        profile = cluster.model_copy(update={"storage": storage})
        found = self.found(profile, quota=["scratch 3 TB of 150 TB"])
        assert (found["quota"].state, found["quota"].detail) == (OK, "scratch 3 TB of 150 TB")
        assert "for 30 days (https://site.example, read 2026-11)" in found["purge"].detail
        row = self.found(profile, quota_failed=["127"], quota=["quota: command not found"])["quota"]
        assert (row.state, row.detail) == (WARNING, "quota ends with status 127")
        assert self.found(profile, quota_failed=["124"])["quota"].detail == "quota takes too long"

    def test_clocks_that_differ(self, cluster: ClusterProfile) -> None:
        assert self.found(cluster, clock=["10"])["clock"].state == WARNING


def test_partitions_of_the_profile_are_compared_with_those_of_slurm(cluster: ClusterProfile) -> None:
    partitions = {
        "main": PartitionSection(cpus_per_node=128),
        "old": PartitionSection(),
        "gone": PartitionSection(),
    }
    profile = cluster.model_copy(update={"partitions": partitions})
    rows = {
        row.detail.split()[-1 if "no" in row.detail.split()[:3] else 0].rstrip(":"): row
        for row in partition_rows(profile, ["main|up|64+|gpu:4", "main|up|32|gpu:4", "old|drain|16|(null)"])
    }
    assert (rows["main"].state, rows["main"].fix) == (WARNING, "cpus_per_node: 64")
    assert rows["old"].state == WARNING
    assert (rows["gone"].state, rows["gone"].fix) == (FAILED, "one of: main, old")


def test_a_job_without_output_shows_the_end_of_its_log(cluster: ClusterProfile) -> None:
    (row,) = job_rows(cluster, "7", "3 s", {}, ["", "srun: error: no such file"], "/scratch/log")
    assert row.state == FAILED
    assert "srun: error: no such file" in row.detail


def test_an_environment_without_megatron(cluster: ClusterProfile) -> None:
    said = {"node": "n1", "writes": "yes", "python": "Python 3.11.2", "programs": "/p"}
    said |= {"torch": "2.13.0 GPUs: 0", "megatron": "ModuleNotFoundError: No module named 'megatron'"}
    rows = {row.what: row for row in job_rows(cluster, "7", "3 s", said, [], "/scratch/log")}
    assert (rows["megatron"].state, rows["megatron"].fix) == (FAILED, "airflow-megatron cluster install alps")
    assert rows["torch"].state == OK
