"""Events from a trigger to a worker, in the JSON form of Airflow's database."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_megatron.megatron.health.stall import StallMemory
from airflow_megatron.megatron.health.training_health import HealthMemory
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.supervision.attempt_memory import AttemptMemory, LogMemory
from airflow_megatron.supervision.event_watch import EventMemory
from airflow_megatron.supervision.job_event import DueAttempt, JobEvent, UnwrittenVerdict
from airflow_megatron.supervision.job_reference import JobHandle

HANDLE = JobHandle("j", 2, "7", first=1)
CARRY = {"handle": HANDLE.to_json()}
MEMORY = AttemptMemory(
    LogMemory(3, began=1),
    EventMemory({"nan": 1}, "RUNNING", 2.5),
    HealthMemory(StallMemory(5, gaps=(1.5,), steps_seen=("model_built",))),
    announced=True,
)


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(Verdict(Outcome.FAILED, "x", exit_code=1), seen=(), error="no memory", watched=HANDLE),
        JobEvent(seen=(Occurrence("notify", "a"),), memory=MEMORY, log_tail=("a",)),
        JobEvent(log_tail=("last",), watched=HANDLE),
    ],
)
def test_what_is_written_is_read(event: JobEvent) -> None:
    assert JobEvent.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_keys_of_each_kind_of_event() -> None:
    """Workers of 7332a23 distinguish the three kinds by these keys."""
    ended = JobEvent(Verdict(Outcome.FINISHED, "x"), seen=()).to_json()
    assert set(ended) == {"verdict", "seen", "error", "log_tail", "carry"}
    assert set(JobEvent(seen=(), memory=AttemptMemory()).to_json()) == {"seen", "memory", "log_tail", "carry"}
    assert set(JobEvent().to_json()) == {"log_tail", "carry"}


def test_of_an_earlier_version() -> None:
    event: dict[str, Any] = {
        "verdict": {"outcome": "finished", "reason": "x"},
        "carry": {"handle": {"attempt": 2}},
    }
    read = JobEvent.from_json({**event, "from_the_future": 1})
    assert read.handle == JobHandle("", 2, None)
    assert not read.is_deadline
    assert JobEvent.from_json({"log_tail": [], "carry": CARRY}).is_deadline


def test_what_an_earlier_version_has_seen() -> None:
    match = {"do": "rollback", "on": "log", "reason": "a", "command": "", "groups": {"iteration": "70"}}
    alarm = {"do": "rollback", "reason": "b", "before_iteration": None}
    lost = {"do": "fail", "reason": "c", "permanent": True}
    read = JobEvent.from_json({"seen": [match, alarm, lost], "carry": CARRY}).seen
    assert read is not None
    assert [item.rolls_back_before for item in read] == [70, None, None]
    assert [item.permanent for item in read] == [False, False, True]
    with pytest.raises(ValueError, match="has no action"):
        JobEvent.from_json({"seen": [{"reason": "a"}]})


def test_without_a_reference() -> None:
    with pytest.raises(ValueError, match="no number of an attempt"):
        _ = JobEvent().handle


def test_other_payloads_are_read_as_written() -> None:
    for due in (DueAttempt(2), DueAttempt(2, 1.5)):
        assert DueAttempt.from_json(json.loads(json.dumps(due.to_json()))) == due
    event = JobEvent(Verdict(Outcome.FAILED, "x"), seen=(), watched=HANDLE)
    kept = UnwrittenVerdict(event, Verdict(Outcome.RETRYABLE, "y"), 3)
    assert UnwrittenVerdict.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    with pytest.raises(ValueError, match="no number"):
        DueAttempt.from_json({"since": 1.5})


def test_damaged_memory_is_read_as_far_as_it_is_valid() -> None:
    """The database of another version may have any JSON: an invalid value counts as missing."""
    damaged: dict[str, Any] = {
        "log": {"offset": "x", "began": 4},
        "events": [],
        "health": {"stall": {"gaps": [1, None, "2", float("nan")], "found": 1}, "spike": 3},
        "announced": "yes",
        "from_the_future": 1,
    }
    read = AttemptMemory.from_json(damaged)
    assert read.log == LogMemory(0, began=4)
    assert read.health == HealthMemory(StallMemory(gaps=(1.0, 2.0)))
    assert (read.events, read.announced) == (EventMemory(), False)
    assert AttemptMemory.from_json({}) == AttemptMemory()
