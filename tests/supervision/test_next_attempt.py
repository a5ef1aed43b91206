"""The next attempt of a job, for all possible records on the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
from airflow_megatron.supervision.attempts import NextAttempt, next_attempt


def state(attempts: int, verdict: dict[str, Any] | None = None, *, job_id: str | None = "7") -> StageRecord:
    """Return the state of a stage with that many attempts; ``job_id`` is the newest one's."""
    found = [AttemptState(number, "1", "1", True, None) for number in range(1, attempts)]
    if attempts:
        found.append(AttemptState(attempts, job_id, None, True, None))
    return StageRecord(tuple(found), RecordedVerdict.from_json(verdict))


def finished(attempt: int, digest: str = "now") -> dict[str, Any]:
    return {"attempt": attempt, "outcome": "finished", "digest": digest}


def cancelled(attempt: int, digest: str = "now", *, intended: bool = True) -> dict[str, Any]:
    return {"attempt": attempt, "outcome": "cancelled", "digest": digest, "intended": intended}


def failed(attempt: int) -> dict[str, Any]:
    return {"attempt": attempt, "outcome": "failed", "digest": "now"}


@pytest.mark.parametrize(
    ("recorded", "rerun", "expected"),
    [
        pytest.param(state(0), False, NextAttempt(1), id="nothing yet"),
        pytest.param(state(0), True, NextAttempt(1), id="nothing yet, asked again"),
        pytest.param(state(2, finished(2)), False, NextAttempt(2, finished=True), id="finished"),
        pytest.param(state(2, finished(2)), True, NextAttempt(3), id="finished, asked again"),
        pytest.param(state(2, finished(2, "before")), False, NextAttempt(3), id="finished as another job"),
        pytest.param(state(1, failed(1)), False, NextAttempt(2), id="failed"),
        pytest.param(state(1, failed(1)), True, NextAttempt(2), id="failed, asked again"),
        pytest.param(state(1, cancelled(1)), False, NextAttempt(1, cancelled=True), id="cancelled as wanted"),
        pytest.param(state(1, cancelled(1)), True, NextAttempt(2), id="cancelled as wanted, asked again"),
        pytest.param(state(1, cancelled(1, "before")), False, NextAttempt(2), id="cancelled as another job"),
        pytest.param(
            state(1, cancelled(1, intended=False)), False, NextAttempt(2), id="cancelled by a person"
        ),
        pytest.param(state(1), False, NextAttempt(1), id="running: taken up"),
        pytest.param(state(1), True, NextAttempt(2, replaces=1), id="running, asked again: replaced"),
        pytest.param(state(3, failed(2)), False, NextAttempt(3), id="running after a failure"),
        pytest.param(state(3, finished(2)), False, NextAttempt(3), id="running after a finished attempt"),
        pytest.param(state(3, finished(2)), True, NextAttempt(4, replaces=3), id="the newest is replaced"),
        pytest.param(state(1, job_id=None), False, NextAttempt(1), id="submission begun: gone on with"),
        pytest.param(state(1, job_id=None), True, NextAttempt(1), id="submission begun, asked again"),
        pytest.param(state(1, {}), False, NextAttempt(1), id="empty verdict"),
        pytest.param(state(2, {"outcome": "finished"}), False, NextAttempt(2), id="verdict of no attempt"),
    ],
)
def test_next_attempt(recorded: StageRecord, rerun: bool, expected: NextAttempt) -> None:
    assert next_attempt(recorded, rerun=rerun, digest="now") == expected
