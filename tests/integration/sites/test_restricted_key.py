"""A key with which sshd runs only the package's programs, on a real Slurm with a real sshd."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from command_line import Answer, runner
from driven_job import DrivenJob, driven
from patience import deadline_in
from ssh_server import USER, SshServer, make_key

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.slurm_submit import job_attempts
from airflow_megatron.sensors.log import LogSensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

SPEC = """\
name: bound
point: p
slurm: {mem: 100M}
stages:
  work:
    kind: command
    command: [sh, -c, "echo step 7; mkdir -p checkpoints/iter_0000007"]
  long: {kind: command, command: [sleep, 300]}
"""


class RestrictedSite:
    """A login node of the local cluster with an unrestricted and a restricted key."""

    def __init__(self, place: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.runs, self.environment = place, place / "runs", monkeypatch
        self.key = make_key(place / "restricted")
        self.admin = make_key(place / "admin")
        variables = f"HOME={place / 'sshd' / 'home'} SLURM_CONF={cluster.description['slurm_conf']}"
        self.server = SshServer(place / "sshd", self.admin, SetEnv=variables)
        self.runs.mkdir()

    def connect(self, key: Path, **extra: Any) -> None:
        """Make Airflow use a key."""
        connection = {
            "conn_type": "ssh",
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": USER,
            "extra": {"key_file": str(key), "host_key": self.server.public_host_key, **extra},
        }
        self.environment.setenv("AIRFLOW_CONN_SLURM_LOCAL", json.dumps(connection))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    return runner(monkeypatch, capsys)


@pytest.fixture
def site(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Answer]
) -> Iterator[RestrictedSite]:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path))
    site = RestrictedSite(tmp_path, cluster, monkeypatch)
    site.server.start()
    try:
        restrict(site, call)
        yield site
    finally:
        site.server.stop()


def restrict(site: RestrictedSite, call: Callable[..., Answer], *words: str) -> None:
    """Install the programs with the unrestricted key, then use the restricted one."""
    site.connect(site.admin)
    answer = call("cluster", "restrict", "local", "--public-key", f"{site.key}.pub", *words)
    assert answer.status == 0, answer.stderr
    keys = site.server.place / "authorized_keys"
    keys.write_text(site.admin.with_suffix(".pub").read_text() + answer.stdout)
    site.connect(site.key, restricted=True)


def test_a_sweep_runs_by_a_restricted_key(
    site: RestrictedSite, cluster: SlurmCluster, call: Callable[..., Answer]
) -> None:
    job = DrivenJob(SPEC, "bound.p.work")
    handle = job.submit()
    assert job.watch(handle)["outcome"] == "finished"
    log = job.job.log_file(1)
    sensor = LogSensor(
        task_id="log", producer=handle, path=log, pattern="step [0-9]", ssh_conn_id="slurm_local"
    )
    assert driven(sensor) == "step 7"  # type: ignore[comparison-overlap]
    listed = call("checkpoints", "--cluster", "local", "--format", "json")
    assert '"iteration": 7' in listed.stdout, listed.stderr
    long = DrivenJob(SPEC, "bound.p.long")
    started = long.submit()
    attempts = job_attempts(long.job, None)
    attempts.cancel(1, started["job_id"])
    deadline = deadline_in(30)
    while cluster.slurm("squeue", "-h", "-j", started["job_id"], "-t", "PD,R", "-o", "%i"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert SlurmHook("slurm_local").test_connection()[0]
