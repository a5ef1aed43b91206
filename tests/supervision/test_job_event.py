"""What a trigger hands to a worker, in the form in which Airflow's database keeps it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.supervision.job_event import JobEvent
from airflow_megatron.supervision.job_reference import JobHandle

HANDLE = JobHandle("j", 2, "7", first=1)
CARRY = {"handle": HANDLE.to_json()}


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(Verdict(Outcome.FAILED, "x", exit_code=1), seen=(), error="no memory", carry=CARRY),
        JobEvent(seen=(Occurrence("notify", "a"),), memory={"log": {"offset": 3}}, log_tail=("a",)),
        JobEvent(log_tail=("last",), carry=CARRY),
    ],
)
def test_what_is_written_is_read(event: JobEvent) -> None:
    assert JobEvent.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_which_keys_say_what_has_happened() -> None:
    """Workers of 7332a23 tell the three kinds apart by them."""
    ended = JobEvent(Verdict(Outcome.FINISHED, "x"), seen=()).to_json()
    assert set(ended) == {"verdict", "seen", "error", "log_tail", "carry"}
    assert set(JobEvent(seen=(), memory={}).to_json()) == {"seen", "memory", "log_tail", "carry"}
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
    with pytest.raises(ValueError, match="does not name what is to be done"):
        JobEvent.from_json({"seen": [{"reason": "a"}]})


def test_without_a_reference() -> None:
    with pytest.raises(ValueError, match="no number of an attempt"):
        _ = JobEvent().handle
