"""What the wait for a job does first: wait, or run the job again because a person cleared the wait that gave it up."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_megatron.planning.attempts import attempt_after_giving_up
from airflow_megatron.slurm.stage_records import AttemptState, StageState


def state(attempts: int, verdict: dict[str, Any] | None = None) -> StageState:
    return StageState(
        tuple(AttemptState(number, "1", "1", True, None) for number in range(1, attempts + 1)), verdict
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
def test_a_job_that_was_given_up_runs_again(recorded: StageState, expected: int | None) -> None:
    assert attempt_after_giving_up(recorded) == expected
