"""The first step of the task that waits for a job: wait, or run the job again after a user cleared the task."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
from airflow_megatron.supervision.attempts import attempt_after_giving_up, was_waited_for


def state(attempts: int, verdict: dict[str, Any] | None = None) -> StageRecord:
    return StageRecord(
        tuple(AttemptState(number, "1", "1", True, None) for number in range(1, attempts + 1)),
        RecordedVerdict.from_json(verdict),
    )


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        pytest.param(state(0), None, id="nothing submitted"),
        pytest.param(state(1), None, id="submitted, no verdict"),
        pytest.param(state(1, {"attempt": 1, "outcome": "finished"}), None, id="finished"),
        pytest.param(state(1, {"attempt": 1, "outcome": "failed"}), 2, id="failed"),
        pytest.param(state(3, {"attempt": 3, "outcome": "cancelled"}), 4, id="cancelled"),
        pytest.param(state(2, {"attempt": 1, "outcome": "failed"}), None, id="failed, and submitted again"),
    ],
)
def test_a_job_that_was_given_up_runs_again(recorded: StageRecord, expected: int | None) -> None:
    assert attempt_after_giving_up(recorded) == expected


@pytest.mark.parametrize(
    ("recorded", "submitted", "waited_for", "expected"),
    [
        pytest.param(state(1), 1, None, False, id="its first try"),
        pytest.param(state(1), 1, 1, True, id="cleared while it waited"),
        pytest.param(state(2), 2, 1, False, id="cleared with its submission, which is new"),
        pytest.param(state(3), 1, 1, True, id="cleared while it waited for an attempt of its own"),
        pytest.param(
            state(1, {"attempt": 1, "outcome": "finished"}), 1, 1, False, id="cleared after the end"
        ),
        pytest.param(state(0), 1, 1, False, id="nothing submitted"),
    ],
)
def test_a_wait_that_is_cleared_runs_its_job_again(
    recorded: StageRecord, submitted: int, waited_for: int | None, expected: bool
) -> None:
    assert was_waited_for(recorded, submitted, waited_for) == expected
