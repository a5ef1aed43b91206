from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.polling.job_ends import (
    awaited_record,
    is_ending,
    job_ends_script,
    parse_job_ends,
)
from airflow_megatron.slurm.polling.poller import Poller
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands
from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.remote.transport import SessionRefusedError, TransportError
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow, Watch

if TYPE_CHECKING:
    from pathlib import Path

RECORD = {
    "exit_code": 0,
    "signal": None,
    "host": "n1",
    "nodes": "n1",
    "started": 1,
    "ended": 2,
    "job_id": "7",
}
RUNNING = "7|RUNNING|1|1|1|1|n1|None|a"
ENDED = "7|COMPLETED|1|1|2|1|n1|None|a"


def queue(slurm, row: str) -> None:
    slurm.behave("squeue", f"echo '{row}'; exit 0")


def attempt(directory: Path) -> Path:
    made = directory / "it's" / "1"
    made.mkdir(parents=True)
    return made


def end(directory: Path) -> None:
    (directory / "exit.json").write_text(json.dumps({**RECORD, "restart_count": 0}) + "\n")


class TestAwaitedRecord:
    watch = Watch(key="x", job_id="7", attempt_dir="/runs/1")
    running = Observation(time=5.0, queue=QueueRow("7", "a", JobState.RUNNING))
    record = ExitRecord.from_json({**RECORD, "restart_count": 0})

    def test_of_a_running_job(self):
        for quiet in (0, 10_000):
            assert awaited_record(self.watch, self.running, quiet) == (False, "/runs/1/exit.json")
        assert awaited_record(replace(self.watch, attempt_dir=None), self.running, 0) is None
        assert not is_ending(self.running)

    def test_of_a_job_that_may_soon_run(self):
        waits = replace(self.running, queue=QueueRow("7", "a", JobState.PENDING))
        assert awaited_record(self.watch, waits, 29) == (True, "/runs/1/exit.json")
        assert awaited_record(self.watch, waits, 31) is None

    @pytest.mark.parametrize("state", [each for each in JobState if each.value not in {"RUNNING", "PENDING"}])
    def test_other_jobs_have_none(self, state):
        assert awaited_record(self.watch, replace(self.running, queue=QueueRow("7", "a", state)), 0) is None

    @pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PENDING])
    def test_a_job_that_has_recorded_its_end_has_none(self, state):
        ended = replace(self.running, exit=self.record)
        assert awaited_record(self.watch, replace(ended, queue=QueueRow("7", "a", state)), 0) is None
        assert is_ending(ended)
        assert not is_ending(replace(ended, queue=QueueRow("7", "a", JobState.PENDING))), "requeued"
        assert not is_ending(replace(ended, queue=QueueRow("7", "a", JobState.COMPLETED)))


class TestScript:
    @pytest.mark.slow
    async def test_it_ends_with_the_first_record(self, transport, tmp_path):
        paths = [str(attempt(tmp_path / name) / "exit.json") for name in ("a", "b;c")]
        began = time.monotonic()
        waiting = asyncio.ensure_future(transport.run(job_ends_script(paths, 30), timeout=60))
        await asyncio.sleep(0.5)
        end(tmp_path / "b;c" / "it's" / "1")
        assert parse_job_ends(paths, await waiting) == paths[1]
        assert time.monotonic() - began < 20

    @pytest.mark.slow
    async def test_it_ends_after_its_time(self, transport):
        began = time.monotonic()
        assert (
            parse_job_ends(["/nowhere"], await transport.run(job_ends_script(["/nowhere"], 1), timeout=60))
            is None
        )
        assert time.monotonic() - began >= 1

    async def test_a_cut_answer_is_an_error(self, transport):
        answer = await transport.run("true", timeout=60)
        with pytest.raises(TransportError):
            parse_job_ends(["/nowhere"], answer)


async def opened(transport):
    return transport


async def observe(subscription, seconds: float = 60.0) -> Observation:
    return await asyncio.wait_for(anext(subscription), seconds)


@pytest.fixture
def directory(tmp_path):
    return attempt(tmp_path)


@pytest.fixture
def watching(slurm, transport, directory):
    """Return a function that makes a poller and the subscription of a job that runs."""
    queue(slurm, RUNNING)

    def begin(interval: float = 600, commands: SlurmCommands = DEFAULT_COMMANDS):
        poller = Poller(lambda: opened(transport), interval=interval, commands=commands)
        return poller, poller.subscribe(Watch(key="x", job_id="7", attempt_dir=str(directory)))

    return begin


@pytest.mark.slow
class TestPoller:
    async def test_a_poll_follows_the_end_of_a_job(self, slurm, directory, watching):
        poller, subscription = watching()
        async with subscription:
            assert (await observe(subscription)).queue.state is JobState.RUNNING
            await asyncio.sleep(0.5)
            end(directory)
            queue(slurm, ENDED)
            assert (await observe(subscription)).queue.state is JobState.COMPLETED
        assert (poller.stats.ticks, poller.stats.waits) == (2, 1)

    async def test_a_job_that_runs_and_ends_between_two_polls(self, slurm, directory, watching):
        poller, subscription = watching()
        queue(slurm, "7|PENDING|1|||1||Priority|a")
        async with subscription:
            assert (await observe(subscription)).queue.state is JobState.PENDING
            end(directory)
            queue(slurm, ENDED)
            assert (await observe(subscription)).queue.state is JobState.COMPLETED
        assert (poller.stats.ticks, poller.stats.waits) == (2, 1)

    async def test_slurm_notices_the_end_later(self, slurm, directory, watching):
        _, subscription = watching()
        async with subscription:
            await observe(subscription)
            end(directory)
            seen = await observe(subscription)
            assert (seen.queue.state, seen.exit.exit_code) == (JobState.RUNNING, 0)
            queue(slurm, ENDED)
            assert (await observe(subscription)).queue.state is JobState.COMPLETED

    async def test_a_record_that_cannot_be_read_causes_one_poll(self, directory, watching):
        (directory / "exit.json").write_text("damaged\n")
        poller, subscription = watching()
        async with subscription:
            await observe(subscription)
            assert (await observe(subscription)).exit is None
            with pytest.raises(TimeoutError):
                await observe(subscription, 4)
        assert (poller.stats.ticks, poller.stats.waits) == (2, 1)

    async def test_a_site_that_permits_one_session(self, slurm, transport, watching, monkeypatch):
        """The wait gives its session to the poll for a new job, and does not begin again."""
        poller, subscription = watching(interval=5)
        run, running = transport.run, []

        async def one_at_a_time(script, *, timeout):
            if running:
                raise SessionRefusedError("cluster: session refused")
            running.append(script)
            try:
                return await run(script, timeout=timeout)
            finally:
                running.remove(script)

        monkeypatch.setattr(transport, "run", one_at_a_time)
        async with subscription:
            await observe(subscription)
            await asyncio.sleep(0.5)
            assert poller.stats.waits == 1
            async with poller.subscribe(Watch(key="y", job_id="7")) as new:
                assert (await observe(new, 4)).queue.state is JobState.RUNNING
            await observe(subscription)
            await observe(subscription)
        assert poller.stats.waits == 1
        assert poller.stats.failures == 0

    async def test_a_lost_wait_changes_nothing(self, transport, watching):
        poller, subscription = watching(interval=3)
        async with subscription:
            await observe(subscription)
            transport.fail_with = "no more sessions"
            await asyncio.sleep(0.5)
            transport.fail_with = None
            assert (await observe(subscription)).unreachable is None
        assert poller.stats.waits >= 1
        assert poller.stats.failures == 0

    @pytest.mark.parametrize(
        ("interval", "commands"), [(1.5, SlurmCommands()), (600, SlurmCommands(login_budget=5))]
    )
    async def test_no_wait_for_short_pauses_and_scarce_sessions(self, watching, interval, commands):
        poller, subscription = watching(interval, commands)
        async with subscription:
            await observe(subscription)
            await asyncio.sleep(0.5)
        assert (poller.stats.ticks, poller.stats.waits) == (1, 0)
