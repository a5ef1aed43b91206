"""A second cluster beside the tests' cluster, from its creation to its removal."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patience import deadline_in, patient, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).resolve().parents[3] / "docker" / "local_cluster"


TAKING_A_PORT = """\
import runpy, socket, sys
sys.path.insert(0, {folder!r})
from local_cluster import settings

choose, taken = settings.choose_ports, []

def choose_ports(*words):
    ports = choose(*words)
    if not taken:
        taken.append(socket.create_server(("", ports["slurmd:n1"])))
    return ports

settings.choose_ports = choose_ports
sys.argv[0] = {program!r}
runpy.run_path({program!r}, run_name="__main__")
"""
"""Runs the program, and listens on a port as soon as the program has chosen it."""


class SecondCluster:
    def __init__(self, place: Path) -> None:
        self.place = place

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(PROGRAM), *words, "--dir", str(self.place)]
        result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(180))
        assert not check or result.returncode == 0, result.stdout + result.stderr
        return result

    @property
    def description(self) -> dict[str, Any]:
        return json.loads((self.place / "cluster.json").read_text())

    def ssh(self, command: str, stdin: str = "", **changed: str) -> str:
        server = self.description["ssh"] | changed
        argv = [
            "ssh",
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-i",
            server["key_file"],
        ]
        argv += ["-o", f"UserKnownHostsFile={server['known_hosts']}", "-o", "GlobalKnownHostsFile=/dev/null"]
        argv += ["-o", "StrictHostKeyChecking=yes", "-p", str(server["port"])]
        argv += [f"{server['user']}@{server['host']}", command]
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, check=True, timeout=patient(60)
        ).stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        return self.ssh(f"cd {self.place} && sbatch --parsable {' '.join(options)}", f"#!/bin/sh\n{script}\n")

    def accounted_state(self, job: str) -> str:
        return self.ssh(f"sacct -X -n -P -j {job} -o state")

    def processes(self) -> list[str]:
        """Return every process that refers to this cluster, without the search of the tested program."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
                    if os.fsencode(self.place) in text:
                        found.append(f"{entry.name} {text[:200]!r}")
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def table_of_another_server() -> Iterator[Path]:
    """A temporary table like those of another MariaDB on this machine."""
    descriptor, name = tempfile.mkstemp(prefix="#sql-temptable-", suffix=".MAI", dir="/tmp")
    os.close(descriptor)
    yield Path(name)
    Path(name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, table_of_another_server: Path
) -> Iterator[SecondCluster]:
    second = SecondCluster(tmp_path_factory.mktemp("second") / "cluster")
    try:
        second.run("up", "--nodes", "2", "--gpus-per-node", "2")
        yield second
    finally:
        second.run("down", "--purge")
    assert second.processes() == []
    assert not second.place.exists()


def wait_for(question: Callable[[], str], answer: str, seconds: float) -> str:
    deadline = deadline_in(seconds)
    while (found := question()) != answer and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


@pytest.mark.usefixtures("cluster")
def test_start_leaves_other_database_servers_alone(table_of_another_server: Path) -> None:
    assert table_of_another_server.exists()


def test_up_again_changes_nothing(cluster: SecondCluster) -> None:
    before = cluster.run("status", "--json").stdout
    assert "already up" in cluster.run("up").stdout
    assert json.loads(cluster.run("status", "--json").stdout)["daemons"] == json.loads(before)["daemons"]
    refused = cluster.run("up", "--nodes", "3", check=False)
    assert refused.returncode == 1
    assert "down first" in refused.stderr


def test_a_job_on_two_nodes_has_gpus_and_is_accounted(cluster: SecondCluster) -> None:
    script = "srun sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    options = (
        "--wait",
        "-N2",
        "--ntasks-per-node=2",
        "--gpus-per-node=2",
        "--comment=point-7",
        "-o",
        "job.out",
    )
    job = cluster.submit(script, *options)
    assert sorted((cluster.place / "job.out").read_text().splitlines()) == ["n1 0,1"] * 2 + ["n2 0,1"] * 2
    assert wait_for(lambda: cluster.accounted_state(job), "COMPLETED", 10) == "COMPLETED"
    assert cluster.ssh(f"sacct -X -n -P -j {job} -o comment,account,exitcode") == "point-7|local|0:0"


def test_a_job_that_takes_over_no_environment_has_a_path(cluster: SecondCluster) -> None:
    cluster.submit("srun env", "--wait", "--export=NONE", "-o", "env.out")
    names = {line.partition("=")[0] for line in (cluster.place / "env.out").read_text().splitlines()}
    assert {"PATH", "HOME", "USER", "SLURM_CONF", "SLURM_JOB_ID"} <= names


def test_nothing_listens_where_others_reach_it(cluster: SecondCluster) -> None:
    """This holds if the host's name has a loopback address, as in Debian's /etc/hosts."""
    named = socket.gethostbyname(socket.gethostname())
    if not named.startswith("127."):
        pytest.skip(f"this host's name means {named}")
    ports = json.loads((cluster.place / "settings.json").read_text())["ports"]
    listening: dict[str, set[str]] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        if line.split()[3] == "0A":
            listening.setdefault(str(int(port, 16)), set()).add(
                socket.inet_ntoa(bytes.fromhex(address)[::-1])
            )
    found = {name: listening[str(port)] for name, port in ports.items()}
    assert all(address.startswith("127.") for addresses in found.values() for address in addresses), found
    assert cluster.place.stat().st_mode & 0o077 == 0


def test_an_unknown_account_is_refused(cluster: SecondCluster) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        cluster.submit("true", "--account=nobody")
    assert "Invalid account" in refusal.value.stderr


def test_cancelling_ends_detached_processes_of_the_job(cluster: SecondCluster) -> None:
    marker = "86419"
    script = f"srun sh -c '(setsid sleep {marker} &); trap \"\" TERM; sleep {marker}; sleep {marker}'"
    job = cluster.submit(script, "-o", "/dev/null")

    def count() -> str:
        command = ["pgrep", "-fc", f"^sleep {marker}"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    assert wait_for(count, "2", 10) == "2"
    cluster.ssh(f"scancel {job}")
    assert wait_for(count, "0", 20) == "0"


def test_a_wrong_host_key_is_refused(cluster: SecondCluster, tmp_path: Path) -> None:
    server = cluster.description["ssh"]
    known = tmp_path / "known_hosts"
    wrong = (cluster.place / "ssh" / "user_key.pub").read_text()
    known.write_text(f"[{server['host']}]:{server['port']} {wrong}")
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        cluster.ssh("true", known_hosts=str(known))
    assert "Host key verification failed" in refusal.value.stderr


def test_a_wrong_user_key_is_refused(cluster: SecondCluster, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        cluster.ssh("true", key_file=str(key))
    assert "Permission denied" in refusal.value.stderr


def test_a_lost_node_fails_its_job_and_comes_back(cluster: SecondCluster) -> None:
    job = cluster.submit("sleep 86420", "-w", "n2", "-o", "/dev/null")
    assert wait_for(lambda: cluster.ssh(f"squeue -h -j {job} -o %T"), "RUNNING", 10) == "RUNNING"
    cluster.run("kill", "node:n2")
    assert cluster.run("status", check=False).returncode == 3
    assert wait_for(lambda: cluster.accounted_state(job), "NODE_FAIL", 90) == "NODE_FAIL"
    cluster.run("start", "slurmd:n2")
    again = cluster.submit("echo $SLURMD_NODENAME", "--wait", "-w", "n2", "-o", "back.out")
    assert (cluster.place / "back.out").read_text() == "n2\n"
    assert wait_for(lambda: cluster.accounted_state(again), "COMPLETED", 10) == "COMPLETED"
    assert cluster.run("status").returncode == 0


def test_everything_is_found_after_the_records_are_lost(cluster: SecondCluster) -> None:
    before = cluster.ssh("sacct -X -n -P -o jobid").split()
    cluster.submit("sleep 86421", "-o", "/dev/null")
    for record in (cluster.place / "daemons").glob("*.json"):
        record.unlink()
    cluster.run("down")
    assert cluster.processes() == []
    cluster.run("up")
    assert set(before) <= set(cluster.ssh("sacct -X -n -P -o jobid").split()), "accounting lost jobs"


def test_down_cancels_jobs_and_forgets_nothing(cluster: SecondCluster) -> None:
    job = cluster.submit("sleep 86422", "-o", "/dev/null")
    assert wait_for(lambda: cluster.ssh(f"squeue -h -j {job} -o %T"), "RUNNING", 10) == "RUNNING"
    port = cluster.description["ssh"]["port"]
    cluster.run("down")
    assert cluster.processes() == []
    assert cluster.run("status", check=False).returncode == 3
    cluster.run("down")
    cluster.run("up")
    assert cluster.description["ssh"]["port"] == port
    wait_until(
        lambda: cluster.accounted_state(job).startswith("CANCELLED"), 10, "the cancellation in accounting"
    )


def test_a_port_that_another_process_takes_meanwhile(tmp_path: Path) -> None:
    """Several clusters that start together can choose the same port."""
    second = SecondCluster(tmp_path / "cluster")
    code = TAKING_A_PORT.format(folder=str(PROGRAM.parent), program=str(PROGRAM))
    argv = [sys.executable, "-c", code, "up", "--nodes", "1", "--dir", str(second.place)]
    try:
        started = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(180))
        assert started.returncode == 0, started.stdout + started.stderr
        assert "other processes have taken the ports of slurmd:n1; trying again" in started.stdout
        assert second.ssh("sinfo -h -o %T") == "idle"
    finally:
        second.run("down", "--purge")
    assert second.processes() == []
