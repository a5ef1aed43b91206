"""Events from a job's trigger to a worker, and continuation by the next trigger."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from scripted_poller import ScriptedPoller

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow
from airflow_megatron.slurm.verdicts.verdict import SETTLE_S
from airflow_megatron.spec.model.schema import HealthSection
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

LINE = (
    " [2026-01-01 00:00:00] iteration {:8d}/ 1000000 | consumed samples: {:12d} | "
    "elapsed time per iteration (ms): 1000.0 | global batch size:     4 | lm loss: {:.6E} | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
LOSSES = [2.0] * 60 + [9.0] * 60 + [2.0] * 40
LOG = "".join(LINE.format(index + 1, 4 * index, loss) for index, loss in enumerate(LOSSES)).encode()
SPIKE_SEEN = len("".join(LINE.format(1, 4, 2.0) for _ in range(100)))


def look(at: float, state: JobState, log_size: int) -> Observation:
    row = QueueRow("7", "s.p.pretrain.a1", state, ended=at if state.ended else None)
    return Observation(
        time=at,
        queue=row,
        queue_ok=True,
        accounting_ok=True,
        accounting_enabled=False,
        exit=ExitRecord.from_json({"exit_code": 0, "started": 50, "ended": at, "job_id": "7"})
        if state.ended
        else None,
        tracker="0",
        log_size=log_size,
    )


def trigger(**changes: Any) -> SlurmJobTrigger:
    values: dict[str, Any] = {
        "ssh_conn_id": "ssh",
        "commands": {},
        "job_id": "7",
        "job_name": "s.p.pretrain.a1",
        "attempt_dir": "/r/.jobs/pretrain/1",
        "log_file": "/r/logs/pretrain-1.out",
        "kind": "train",
        "train_iters": 1_000_000,
        "checkpoint_dir": "/r/checkpoints",
        "health": {"rules": HealthSection.model_validate({"spike": {"do": "rollback"}}).model_dump()},
        "carry": {"handle": {}},
    }
    return SlurmJobTrigger(**{**values, **changes})


async def events(of: SlurmJobTrigger) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(event.payload)) async for event in of.wait()]


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> ScriptedPoller:
    poller = ScriptedPoller(
        [look(at, JobState.RUNNING, size) for at, size in ((0, 9000), (15, len(LOG)))], LOG
    )
    monkeypatch.setattr(ClusterTrigger, "poller", poller)
    return poller


async def test_a_rollback_names_its_iteration(polls: ScriptedPoller) -> None:
    (event,) = await events(trigger())
    (seen,) = event["seen"]
    assert (seen["do"], seen["before_iteration"]) == ("rollback", 61)
    assert seen["reason"].startswith("health.spike: the loss is 9 at iteration 91")


async def test_a_trigger_that_runs_twice_sends_equal_events(polls: ScriptedPoller) -> None:
    first = trigger()
    path, arguments = first.serialize()
    assert path.endswith("SlurmJobTrigger")
    twin = SlurmJobTrigger(**json.loads(json.dumps(arguments)))
    assert await events(first) == await events(twin)


async def test_the_next_trigger_continues_after_the_last_event(polls: ScriptedPoller) -> None:
    (event,) = await events(trigger())
    assert event["memory"]["log"]["offset"] == len(LOG)
    polls.looks = [look(30 + index, JobState.RUNNING, len(polls.log)) for index in range(3)]
    polls.log += "".join(LINE.format(161 + index, 0, 9.0) for index in range(40)).encode()
    polls.looks.append(look(60, JobState.RUNNING, len(polls.log)))
    (later,) = await events(trigger(memory=event["memory"]))
    assert [seen["before_iteration"] for seen in later["seen"]] == [161]
    polls.looks = polls.looks[-1:]
    assert await events(trigger(memory=later["memory"])) == []


async def test_a_finish_condition_is_given_time_to_show(
    polls: ScriptedPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of an ended job appear late on a network file system; this causes no new attempt."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    finish = {"kind": "file", "path": "/r/done"}
    polls.log = b"over\n"

    class Ticking(ScriptedPoller):
        def subscribe(self, watch: Any) -> Any:
            subscription = super().subscribe(watch)
            if watch.log_file:
                inner = subscription.__anext__

                async def ticking() -> Observation:
                    now[0] += SETTLE_S / 2
                    return await inner()

                subscription = _Wrapped(subscription, ticking)
            return subscription

    ended = look(100.0, JobState.COMPLETED, 5)
    absent = [ended for _ in range(5)]
    monkeypatch.setattr(ClusterTrigger, "poller", Ticking(absent, polls.log))
    (event,) = await events(trigger(kind="command", conditions={"finish": finish}))
    assert event["verdict"]["outcome"] == "rolled_over"
    assert "its finish condition does not hold" in event["verdict"]["reason"]
    assert now[0] - 1000.0 >= SETTLE_S


class _Wrapped:
    def __init__(self, inner: Any, look: Any) -> None:
        self._inner, self._look = inner, look

    async def __aenter__(self) -> _Wrapped:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def __aiter__(self) -> _Wrapped:
        return self

    async def __anext__(self) -> Any:
        return await self._look()

    def update(self, **changes: Any) -> None:
        self._inner.update(**changes)
