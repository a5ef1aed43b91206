"""Jobs whose tasks are killed while logins are refused: cancelled once when logins work again, or not at all."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from patience import deadline_in, wait_until
from ssh_server import USER, SshServer, make_key
from watched_jobs import until

from airflow_megatron.hooks import late_cancellations, login_gate
from airflow_megatron.supervision.submission.remembered_cancellations import drop_cancellation, remembered
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration


class Site:
    """A login node that can refuse logins, and jobs that run until a file exists."""

    def __init__(self, cluster: SlurmCluster, place: Path) -> None:
        self.cluster, self.place = cluster, place
        key = make_key(place / "id")
        home = place / "sshd" / "home"
        conf = cluster.description["slurm_conf"]
        self.server = SshServer(place / "sshd", key, SetEnv=f"HOME={home} SLURM_CONF={conf}")
        self.connection = {
            "conn_type": "ssh",
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": USER,
            "extra": {"key_file": str(key), "host_key": self.server.public_host_key},
        }

    def refuse(self) -> None:
        (self.server.place / "authorized_keys").rename(self.server.place / "revoked")
        self.server.signal_sessions(signal.SIGKILL)

    def accept(self) -> None:
        (self.server.place / "revoked").rename(self.server.place / "authorized_keys")

    def trigger(self, name: str, **changes: Any) -> SlurmJobTrigger:
        """Submit a job, wait until it runs, and return the trigger that watches it."""
        request = self.cluster.request(self.place, name, f"am_run {until(self.place / 'go')}")
        values = {
            "job_id": self.cluster.submit_patiently(request).job_id,
            "job_name": request.attempt.job_name,
            "attempt_dir": request.attempt.directory,
            "log_file": f"{self.place}/logs/{name}-1.out",
            "kind": "command",
            "poll_interval": 0.5,
        }
        trigger = SlurmJobTrigger(ssh_conn_id="site", commands={}, **{**values, **changes})
        wait_until(lambda: self.state(trigger) == "RUNNING", 60, f"the start of {name}")
        return trigger

    def state(self, trigger: SlurmJobTrigger) -> str:
        return self.cluster.slurm("squeue", "-h", "-t", "all", "-j", trigger.job_id, "-o", "%T")


@pytest.fixture
def site(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(late_cancellations, "PAUSE_S", 0.3)
    monkeypatch.setattr(login_gate, "FIRST_PAUSE_S", 0.0)
    site = Site(cluster, tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_SITE", json.dumps(site.connection))
    site.server.start()
    yield site
    (tmp_path / "go").touch()
    site.server.stop()


async def eventually(condition: Callable[[], Any]) -> None:
    deadline = deadline_in(30)
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.2)


async def watched(trigger: SlurmJobTrigger, then: Awaitable[None]) -> None:
    """Run a trigger until another coroutine has ended."""

    async def follow() -> None:
        async for _ in trigger.wait():
            pass

    following = asyncio.create_task(follow())
    try:
        await then
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def killed_while_refused(site: Site, trigger: SlurmJobTrigger) -> None:
    """Kill a trigger, as when its task is marked, in a triggerer that then ends."""

    async def kill() -> None:
        await eventually(lambda: trigger.poller.stats.ticks > 1)
        site.refuse()
        await trigger.on_kill()

    asyncio.run(watched(trigger, kill()))


def test_the_next_triggerer_cancels_it_once(site: Site) -> None:
    killed, other = site.trigger("killed"), site.trigger("other")
    killed_while_refused(site, killed)
    assert [each.job_id for each in remembered()] == [killed.job_id]
    assert site.state(killed) == "RUNNING"

    async def work_again() -> None:
        await asyncio.sleep(0.5)  # the first tries fail
        assert site.state(killed) == "RUNNING"
        site.accept()
        await eventually(lambda: not remembered())

    asyncio.run(watched(other, work_again()))
    wait_until(lambda: site.state(killed) == "CANCELLED", 30, "the end of the cancelled job")
    assert site.state(other) == "RUNNING"
    verdict = json.loads((site.place / ".jobs" / "killed" / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["attempt"]) == ("cancelled", 1)


def test_a_job_that_its_stage_follows_again_is_not_cancelled(site: Site) -> None:
    killed = site.trigger("taken")
    killed_while_refused(site, killed)
    drop_cancellation("site", str(site.place / ".jobs" / "taken"), "dag run")
    site.accept()

    async def follow_again() -> None:
        follower = SlurmJobTrigger(**{**killed.serialize()[1], "taken_up": 1})

        async def late_kill() -> None:
            await eventually(lambda: follower.poller.stats.ticks > 1)
            await killed.on_kill()
            assert site.state(killed) == "RUNNING"
            await follower.on_kill()
            await eventually(lambda: site.state(killed) == "CANCELLED")

        await watched(follower, late_kill())

    asyncio.run(follow_again())
    assert remembered() == []
