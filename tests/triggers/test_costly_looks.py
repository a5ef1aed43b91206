"""Many patterns in a spec, or large output of a job, do not block the event loop of all jobs."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from scripted_poller import ScriptedPoller

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.supervision.event_watch import EventWatch
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.task_runtime.condition_follower import followed
from airflow_megatron.triggers.checkpoint import CheckpointTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from collections.abc import Coroutine

pytestmark = pytest.mark.slow

LONGEST_HOLD_S = 0.1
SIZE = 64 * 1024
SLOW = "[ab]*a[ab]{900}[^ab]"
"""One of the slowest that are accepted: 4 µs for each character."""
random.seed(7)
AB = "".join(random.choices("ab", k=SIZE)).encode()
LOGS = {
    "empty lines": b"\n" * SIZE,
    "short lines": b"".join(b"%x\n" % number for number in range(SIZE))[:SIZE],
    "one line": AB[:-1] + b"\n",
    "a line that does not end": AB,
    "lines as long as they are searched": b"\n".join(AB[at : at + 4095] for at in range(0, SIZE, 4096)),
}
MANY, FEW = 10, 1


def look(log: bytes) -> Observation:
    row = QueueRow("7", "s.p.a.a1", JobState.RUNNING)
    return Observation(time=100.0, queue=row, queue_ok=True, accounting_ok=True, log_size=len(log))


def job_trigger(**own: Any) -> SlurmJobTrigger:
    """Return the trigger of a job of which only *own* matters."""
    return SlurmJobTrigger(
        ssh_conn_id="ssh",
        commands={},
        job_id="7",
        job_name="s.p.a.a1",
        attempt_dir="/r/.jobs/a/1",
        log_file="/r/logs/a-1.out",
        carry={"handle": {}},
        **own,
    )


def time_in_the_loop(work: Coroutine[Any, Any, None]) -> float:
    """Return the processor time of the loop's own thread."""
    begin = time.thread_time()
    asyncio.run(work)
    return time.thread_time() - begin


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize(("pattern", "count"), [("error @", MANY), (SLOW + "@", FEW)], ids=["many", "slow"])
def test_events(log: bytes, pattern: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        Event(f"e{number}", "log", "notify", pattern.replace("@", str(number))).to_json()
        for number in range(count)
    ]
    trigger = job_trigger(kind="command", conditions={"events": events})
    poller = ScriptedPoller([look(log)], log)
    monkeypatch.setattr(ClusterTrigger, "poller", property(lambda self: poller))

    async def work() -> None:
        async for _ in trigger.wait():
            raise AssertionError("no line matches")

    assert time_in_the_loop(work()) < LONGEST_HOLD_S


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize(("pattern", "count"), [("error @", MANY), (SLOW + "@", FEW)], ids=["many", "slow"])
def test_conditions(log: bytes, pattern: str, count: int) -> None:
    parts = tuple(
        Condition("log", path="/r/log", pattern=pattern.replace("@", str(number))) for number in range(count)
    )
    condition = Condition("any", parts=parts)

    async def work() -> None:
        async with followed(ScriptedPoller([look(log)], log), condition, {}) as follower:  # type: ignore[arg-type]
            assert await follower.look() is not None

    assert time_in_the_loop(work()) < LONGEST_HOLD_S


def test_the_part_of_a_line_that_was_read_before_counts() -> None:
    watch = EventWatch([Event("e", "log", "notify", SLOW)])
    assert watch.work(look(b"")) == 0
    watch.read(look_at(AB), progressed=False)
    assert watch.work(look_at(b"\n")) > SIZE


def look_at(chunk: bytes) -> Observation:
    return Observation(time=1.0, queue_ok=True, accounting_ok=True, log_chunk=chunk, log_size=len(chunk))


def test_lines_that_are_repeated_are_searched_once() -> None:
    watch = EventWatch([Event("e", "log", "notify", "error (?P<number>[0-9])", limit=None)])
    (seen,) = watch.read(look_at(b"error 1\nx\nerror 2\nerror 1\n" * 2000), progressed=False)
    assert seen.groups == {"number": "1"}
    assert watch._lines(b"a\nb\na\n" * 1000) == ["a", "b"]


FILES = 30_000
"""A listing may have some 200,000 for each directory."""
CHECKPOINTS = {
    "legacy": {"iter_0000005": {f"mp_rank_{rank:05d}_000/model_optim_rng.pt": 1 for rank in range(FILES)}},
    "directories": {f"iter_{number:07d}": {"x": 1} for number in range(FILES)},
}


def listing(files: dict[str, dict[str, int]], *, ended: bool = False) -> Observation:
    state = JobState.COMPLETED if ended else JobState.RUNNING
    row = QueueRow("7", "s.p.a.a1", state, started=40.0, ended=90.0 if ended else None)
    return Observation(
        time=100.0,
        queue=row,
        queue_ok=True,
        accounting_ok=True,
        accounting_enabled=False,
        tracker="5",
        checkpoint_files=files,
        matches={"/r/done_*": ()},
        log_size=0,
    )


@pytest.mark.parametrize("files", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("waits", ["a job", "a checkpoint", "a condition", "new checkpoints"])
def test_checkpoints(files: dict[str, dict[str, int]], waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poller = ScriptedPoller([listing(files, ended=waits == "a job")])
    monkeypatch.setattr(ClusterTrigger, "poller", property(lambda self: poller))
    job = job_trigger(kind="train", train_iters=5, checkpoint_dir="/r/checkpoints")
    checkpoint = CheckpointTrigger(
        ssh_conn_id="ssh", commands={}, checkpoint_dir="/r/checkpoints", iteration=5
    )
    kind = "checkpoint" if waits == "a condition" else "new_checkpoint"
    done = "" if waits == "a condition" else "/r/done_{iteration}"
    condition = Condition(kind, path="/r/checkpoints", iteration=5, done=done)

    async def work() -> None:
        if waits in ("a job", "a checkpoint"):
            async for _ in (job if waits == "a job" else checkpoint).wait():
                return
        else:
            async with followed(poller, condition, {}) as follower:  # type: ignore[arg-type]
                await follower.look()

    assert time_in_the_loop(work()) < LONGEST_HOLD_S
