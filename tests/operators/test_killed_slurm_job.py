"""SlurmJobOperator in a task's process that is ended soon after SIGTERM, while its login node does not answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_slurm import FakeSlurm, fake_slurm
from ssh_server import USER, SshServer, make_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

LATE_SBATCH = 'accept "$@"; until [ -e "$FAKE_SLURM/go" ]; do sleep 0.1; done; echo "$id"'


def wait_for(true: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.1)


class Site:
    """A login node that can stop answering, and a task's process."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.slurm: FakeSlurm = fake_slurm(place / "slurm")
        key = make_key(place / "id")
        home = place / "sshd" / "home"
        self.server = SshServer(
            place / "sshd", key, SetEnv=f"HOME={home} FAKE_SLURM={self.slurm.root} LC_ALL=C"
        )
        extra = {
            "key_file": str(key),
            "host_key": self.server.public_host_key,
            "slurm_bin": str(self.slurm.root / "bin"),
        }
        connection = {
            "conn_type": "slurm",
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": USER,
            "extra": extra,
        }
        self.environment = {
            **os.environ,
            "AIRFLOW_CONN_SITE": json.dumps(connection),
            "AIRFLOW_MEGATRON_LOCAL": str(place / "local"),
            "TASK_STORE": str(place / "store"),
        }
        self.task: subprocess.Popen[bytes] | None = None

    def start_task(self, mode: str) -> subprocess.Popen[bytes]:
        with (self.place / "output").open("wb") as output:
            self.task = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("killed_task.py")), "sleep 100", mode],
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self.task

    @property
    def output(self) -> str:
        return (self.place / "output").read_text()

    def signal_login_node(self, number: int) -> None:
        assert self.server.process is not None
        self.server.signal_sessions(number)
        self.server.process.send_signal(number)

    def kill_soon(self, task: subprocess.Popen[bytes]) -> None:
        """End a task as Airflow does, with less patience."""
        task.terminate()
        time.sleep(1)
        assert task.poll() is None, self.output
        os.killpg(task.pid, signal.SIGKILL)
        task.wait()

    @property
    def verdict(self) -> dict[str, object]:
        (path,) = self.server.home.glob("airflow-jobs/d/r/t/.jobs/job/verdict.json")
        return dict(json.loads(path.read_text()))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    site.server.start()
    yield site
    if site.task is not None and site.task.poll() is None:
        os.killpg(site.task.pid, signal.SIGKILL)
        site.task.wait()
    (site.slurm.root / "go").touch()
    site.signal_login_node(signal.SIGCONT)
    site.server.stop()


def assert_cancelled_later(site: Site) -> None:
    assert site.slurm.jobs == ["1001"]
    (site.slurm.root / "go").touch()
    site.signal_login_node(signal.SIGCONT)
    wait_for(lambda: not site.slurm.jobs, "the cancellation")
    folder = site.place / "local" / "cancellations"
    wait_for(lambda: not list(folder.glob("*.json")), "the end of the record")
    assert site.verdict["outcome"] == "cancelled"
    assert "ended before the cancellation" in (folder / "cancellations.log").read_text()


def test_a_task_that_waits(site: Site) -> None:
    task = site.start_task("worker")
    wait_for(lambda: "watching Slurm job" in site.output, "the job")
    time.sleep(1)
    site.signal_login_node(signal.SIGSTOP)
    site.kill_soon(task)
    assert_cancelled_later(site)


@pytest.mark.parametrize("mode", ["worker", "deferrable"])
def test_a_task_that_submits(site: Site, mode: str) -> None:
    site.slurm.behave("sbatch", LATE_SBATCH)
    task = site.start_task(mode)
    wait_for(lambda: site.slurm.jobs, "the job")
    site.signal_login_node(signal.SIGSTOP)
    site.kill_soon(task)
    assert_cancelled_later(site)


def test_a_task_that_cancels_its_job_itself(site: Site) -> None:
    task = site.start_task("worker")
    wait_for(lambda: "watching Slurm job" in site.output, "the job")
    time.sleep(1)
    task.terminate()
    wait_for(lambda: "cancelled job 1001" in site.output, "the cancellation")
    logins = site.server.logins
    time.sleep(3)
    assert site.slurm.jobs == []
    assert site.server.logins == logins
    assert not (site.place / "local" / "cancellations" / "cancellations.log").exists()
