from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from local_cluster import daemons, processes, settings
from local_cluster.cluster import Cluster
from local_cluster.errors import ClusterError
from local_cluster.layout import Layout
from local_cluster.settings import Settings, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = Path(__file__).resolve().parents[2] / "docker" / "local_cluster"

Spawn = "Callable[..., subprocess.Popen[bytes]]"


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **environment: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(argv, env={"PATH": os.defpath, **environment})
        started.append(child)
        # between fork and exec the child still has this process's environment
        assert processes.wait_until(lambda: processes.arguments(child.pid) == list(argv), 60.0)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def identity(child: subprocess.Popen[bytes]) -> processes.ProcessIdentity:
    found = processes.identify(child.pid)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_record_is_good_for_one_process_only(tmp_path: Path, spawn: Spawn) -> None:
    child = spawn("sleep", "60")
    record = tmp_path / "slurmctld.json"
    processes.write_record(record, identity(child))
    found = processes.read_record(record)
    assert found is not None
    assert processes.is_running(found)
    child.kill()
    assert processes.wait_until(lambda: not processes.is_running(found), 60.0), "a zombie does not run"
    child.wait()
    assert not processes.is_running(found)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "another boot"}])
def test_a_process_that_got_an_old_number_is_never_ended(spawn: Spawn, change: dict[str, object]) -> None:
    child = spawn("sleep", "60")
    stale = dataclasses.replace(identity(child), **change)
    processes.end([stale], 0.2)
    assert child.poll() is None


def test_up_does_not_wait_for_a_node_whose_daemon_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []

    def look_once(condition: Callable[[], bool], *words: float, **options: float) -> bool:
        looked.append(condition())
        return looked[-1]

    monkeypatch.setattr(processes, "wait_until", look_once)
    monkeypatch.setattr(Cluster, "_node_states", lambda self: {"n1": "idle"})
    cluster = Cluster(Layout.at(tmp_path / "cluster"), lambda line: None)
    with pytest.raises(ClusterError, match=r"nodes did not come up: n1 \(its slurmd has ended\)"):
        cluster._await_nodes(["n1"])
    assert looked == [True]


def test_nodes_that_slurm_does_not_know_are_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = processes.ProcessIdentity(1, 1, "")
    monkeypatch.setattr(daemons, "running_process", lambda *words: running)
    monkeypatch.setattr(processes, "wait_until", lambda *words, **options: False)
    cluster = Cluster(Layout.at(tmp_path / "cluster"), lambda line: None)
    with pytest.raises(ClusterError, match=r"nodes did not come up: n1 \(no state\)"):
        cluster._await_nodes(["n1"])


@pytest.mark.slow
def test_processes_that_others_leave_behind_are_ended_too(
    tmp_path: Path, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[processes.ProcessIdentity] = []

    def found(self: Cluster) -> list[processes.ProcessIdentity]:
        if not any(map(processes.is_running, left)) and len(left) < 5:
            left.append(identity(spawn("sleep", "60")))
        return [process for process in left if processes.is_running(process)]

    monkeypatch.setattr(Cluster, "_processes", found)
    layout = Layout.at(tmp_path / "cluster")
    layout.make_directories()
    Cluster(layout, lambda line: None).down()
    assert len(left) == 5
    assert not any(map(processes.is_running, left))


@pytest.mark.slow
def test_a_frozen_process_does_not_see_the_end_of_another(tmp_path: Path, spawn: Spawn) -> None:
    """As a node that loses power: its step daemon cannot report that a task was killed."""
    reported = tmp_path / "reported"
    parent = spawn("sh", "-c", f"sleep 60; touch {reported}")
    assert processes.wait_until(lambda: bool(processes.descendants([parent.pid])), 60.0)
    child = processes.identify(processes.descendants([parent.pid])[0])
    assert child is not None
    processes.freeze([child, identity(parent)])
    processes.end([child], 5.0, first=signal.SIGKILL)
    time.sleep(0.3)
    assert not reported.exists()
    os.kill(parent.pid, signal.SIGCONT)
    assert processes.wait_until(reported.exists, 60.0)


@pytest.mark.parametrize("text", ["", "7", "{}", '{"pid": "x"}', "not json", "[1]"])
def test_a_damaged_record_names_no_process(tmp_path: Path, text: str) -> None:
    record = tmp_path / "sshd.json"
    record.write_text(text)
    assert processes.read_record(record) is None


@pytest.mark.slow
def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, spawn: Spawn) -> None:
    script = "trap '' TERM; touch \"$READY\"; while :; do sleep 0.1; done"
    child = spawn("sh", "-c", script, READY=str(tmp_path / "ready"))
    # before that, the signal is not ignored
    assert processes.wait_until((tmp_path / "ready").exists, 60.0)
    processes.end([identity(child)], 0.5)
    assert child.wait(60) == -signal.SIGKILL


class TestMembership:
    @pytest.fixture
    def found(self, tmp_path: Path) -> Callable[[], list[int]]:
        conf = tmp_path / "etc" / "slurm.conf"
        return lambda: processes.cluster_pids(tmp_path, conf, tmp_path / "etc" / "sshd_config", None)

    @pytest.mark.slow
    def test_daemons_and_jobs_belong_to_the_cluster(
        self, tmp_path: Path, spawn: Spawn, found: Callable[[], list[int]]
    ) -> None:
        daemon = spawn("sleep", "60", **{processes.MARKER: str(tmp_path)})
        task = spawn("sleep", "61", SLURM_CONF=str(tmp_path / "etc" / "slurm.conf"), SLURM_JOB_ID="7")
        assert found() == sorted([daemon.pid, task.pid])

    @pytest.mark.slow
    def test_other_processes_do_not_belong(
        self, tmp_path: Path, spawn: Spawn, found: Callable[[], list[int]]
    ) -> None:
        conf = tmp_path / "etc" / "slurm.conf"
        conf.parent.mkdir()
        conf.touch()
        spawn("tail", "-f", str(conf))  # another process reads the configuration
        spawn("sleep", "60", SLURM_CONF=str(conf))  # a shell that works with the cluster
        spawn("sleep", "61", SLURM_CONF="/etc/slurm/slurm.conf", SLURM_JOB_ID="7")  # another cluster's job
        spawn("sleep", "62", **{processes.MARKER: str(tmp_path / "nested")})  # a cluster in a directory below
        assert found() == []

    @pytest.mark.slow
    def test_processes_of_a_node_are_its_tasks_and_their_children(
        self, tmp_path: Path, spawn: Spawn, found: Callable[[], list[int]]
    ) -> None:
        conf = str(tmp_path / "etc" / "slurm.conf")
        script = "sleep 63 & wait"
        here = spawn("sh", "-c", script, SLURM_CONF=conf, SLURM_JOB_ID="7", SLURMD_NODENAME="n2")
        there = spawn("sleep", "60", SLURM_CONF=conf, SLURM_JOB_ID="7", SLURMD_NODENAME="n1")
        assert processes.wait_until(lambda: len(found()) == 3, 60.0)
        node = processes.node_pids(found(), "n2")
        assert here.pid in node
        assert len(node) == 2
        assert there.pid not in node

    def test_a_step_daemon_without_environment_belongs_to_the_node_of_its_task(
        self, tmp_path: Path, found: Callable[[], list[int]]
    ) -> None:
        """As slurmstepd 26.05 does, whose title overwrites the environment."""
        task = f"SLURM_CONF={tmp_path}/etc/slurm.conf SLURM_JOB_ID=7 SLURMD_NODENAME=n2 sleep 64"
        argv = ["slurmstepd: [7.0]", "-c", f"{task} & wait"]
        with subprocess.Popen(argv, executable="/bin/bash", env={"PATH": os.defpath}) as daemon:
            try:
                assert processes.wait_until(lambda: len(found()) == 2, 60.0)
                assert daemon.pid in found()
                assert daemon.pid in processes.node_pids(found(), "n2")
                assert processes.node_pids(found(), "n1") == []
            finally:
                processes.end(
                    filter(None, map(processes.identify, processes.descendants([daemon.pid]))),
                    0.0,
                    signal.SIGKILL,
                )

    @pytest.mark.slow
    def test_the_caller_and_its_parents_do_not_belong(self, tmp_path: Path) -> None:
        # A job of the cluster asks for its own cluster's processes.
        environment = {**os.environ, processes.MARKER: str(tmp_path), "PYTHONPATH": str(PROGRAM.parent)}
        code = (
            "from pathlib import Path; from local_cluster import processes; "
            f"p = Path({str(tmp_path)!r}); print(processes.cluster_pids(p, p, p, None))"
        )
        argv = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, code]
        result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "[]"


def test_ports_stay_where_they_are_free() -> None:
    size = Size(nodes=2)
    first = settings.choose_ports(size, {})
    assert len(set(first.values())) == len(first) == 6
    with socket.socket() as other:
        other.bind(("127.0.0.1", first["sshd"]))
        other.listen()
        second = settings.choose_ports(size, first)
        assert processes.is_listening(first["sshd"])
    assert second["sshd"] != first["sshd"]
    assert {name: port for name, port in second.items() if name != "sshd"} == {
        name: port for name, port in first.items() if name != "sshd"
    }


def test_a_larger_cluster_keeps_the_ports_it_had() -> None:
    first = settings.choose_ports(Size(nodes=1), {})
    second = settings.choose_ports(Size(nodes=3), first)
    assert second.items() >= first.items()


def test_settings_survive_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert settings.load_settings(path) is None
    kept = Settings(Size(nodes=2), {"sshd": 20001})
    kept.save(path)
    assert settings.load_settings(path) == kept
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ClusterError, match="purge"):
        settings.load_settings(path)


class TestCommandLine:
    @staticmethod
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), *words], capture_output=True, text=True, check=False, timeout=60
        )

    @pytest.mark.slow
    def test_a_cluster_that_never_was(self, tmp_path: Path) -> None:
        place = tmp_path / "cluster"
        assert self.run("status", "--dir", str(place)).returncode == 3
        assert self.run("down", "--dir", str(place)).returncode == 0
        killed = self.run("kill", "slurmctld", "--dir", str(place))
        assert killed.returncode == 1
        assert "no cluster" in killed.stderr
        assert not place.exists()

    @pytest.mark.slow
    def test_purge_refuses_a_directory_without_a_cluster(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        result = self.run("down", "--purge", "--dir", str(tmp_path))
        assert result.returncode == 1
        assert "it was not deleted" in result.stderr
        assert (tmp_path / "thesis.tex").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize("option", ["--nodes=0", "--gpus-per-node=99", "--memory-mb=1"])
    def test_a_size_out_of_range_is_refused(self, tmp_path: Path, option: str) -> None:
        result = self.run("up", option, "--dir", str(tmp_path))
        assert result.returncode == 1
        assert option.partition("=")[0] in result.stderr
        assert not (tmp_path / "cluster.json").exists()
