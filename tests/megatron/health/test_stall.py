"""Detection of an iteration counter that does not increase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_lines import TRAIN_ITERS, line

from airflow_megatron.megatron.health.stall import StallDetector
from airflow_megatron.megatron.logs.log_lines import (
    CheckpointEvent,
    CheckpointRecord,
    ErrorRecord,
    MarkerKind,
    MarkerRecord,
    ValidationRecord,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.health.finding import HealthFinding
    from airflow_megatron.megatron.logs.log_lines import Record

SAVING = CheckpointRecord(CheckpointEvent.SAVING, 3, "/r")
SAVED = CheckpointRecord(CheckpointEvent.SAVED, 3, "/r")
VALIDATION = ValidationRecord(3, "validation", None, False, {"lm loss": 2.0}, {})
INITIALIZED = MarkerRecord(MarkerKind.INITIALIZED, "after megatron is initialized")
BUILT = MarkerRecord(MarkerKind.DATALOADERS_BUILT, "after dataloaders are built")
SIGTERM = MarkerRecord(MarkerKind.EXITING_SIGNAL, "exiting program after receiving SIGTERM.")


class Watched:
    """A detector, a clock, and a job that is looked at every ten seconds."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = {"after": 600, "factor": 5, "startup": 3600, "quiet": 3600, **arguments}
        self.detector = StallDetector(**self.arguments)
        self.now = 0.0

    def look(
        self, *records: Record, seconds: float = 10, running: bool = True, queued: bool = False
    ) -> HealthFinding | None:
        self.now += seconds
        return self.detector.read(records, now=self.now, running=running, queued=queued)

    def trained(self, count: int = 5, every: float = 10, start: int = 0) -> Watched:
        """Add a number of iterations, one at each poll."""
        for number in range(start + 1, start + count + 1):
            assert self.look(line(number), seconds=every) is None
        return self

    def silent_for(self, seconds: float, *records: Record, **state: bool) -> list[HealthFinding]:
        found = [self.look(*records, **state) for _ in range(round(seconds / 10))]
        return [finding for finding in found if finding]


def test_ten_minutes_without_an_iteration_are_reported_as_a_stall_once() -> None:
    job = Watched().trained()
    assert job.silent_for(590) == []
    (finding,) = job.silent_for(7200)
    assert "for 10 min since it reached iteration 5 (training; the limit is 10 min)" in finding.text
    assert finding.before_iteration is None
    assert job.look(line(6)) is None
    assert len(job.silent_for(1200)) == 1


def test_a_run_of_slow_iterations_is_given_five_times_its_longest_pause() -> None:
    job = Watched().trained(every=400)
    assert job.silent_for(1990) == []
    assert len(job.silent_for(20)) == 1


def test_pauses_are_learned_from_the_lines_where_they_come_together() -> None:
    """A log read again from its beginning shows hours within seconds."""
    job = Watched()
    assert job.look(*(line(number, elapsed_ms=400_000) for number in range(1, 9))) is None
    assert job.silent_for(1990) == []
    assert len(job.silent_for(20)) == 1


def test_output_that_is_no_iteration_is_no_progress() -> None:
    job = Watched().trained()
    assert len(job.silent_for(1200, ErrorRecord("exception", "X", ""), line(5))) == 1


@pytest.mark.parametrize("phase", [SAVING, VALIDATION, SIGTERM])
def test_saving_validating_and_ending_may_take_long(phase: Record) -> None:
    job = Watched().trained()
    job.look(phase)
    assert job.silent_for(3590) == []
    assert len(job.silent_for(20)) == 1


def test_the_last_iteration_is_followed_by_a_save_and_a_test() -> None:
    job = Watched().trained()
    job.look(line(TRAIN_ITERS))
    assert job.silent_for(3590) == []


def test_where_a_validation_is_due_it_may_be_silent_until_its_length_is_known() -> None:
    """Megatron-LM prints no line when a validation during the training starts."""
    job = Watched(intervals=[100]).trained(99)
    assert len(job.silent_for(700)) == 1  # none is due after iteration 99
    job = Watched(intervals=[100]).trained(100)
    assert job.silent_for(3000) == []
    job.trained(100, start=100)
    assert job.detector.limit == 5 * 3010


def test_between_lines_of_many_iterations_a_save_may_be_due_anywhere() -> None:
    job = Watched(intervals=[250])
    for number in range(100, 300, 100):
        job.look(line(number, elapsed_ms=10))
    assert job.silent_for(1200) == []
    job.look(line(300, elapsed_ms=10))
    assert job.silent_for(590) == []
    assert len(job.silent_for(20)) == 1


def test_a_save_whose_length_is_known_may_not_take_much_longer() -> None:
    job = Watched().trained()
    job.look(SAVING)
    job.silent_for(60)
    job.look(SAVED)
    job.trained(5, start=5)
    job.look(SAVING)
    assert job.silent_for(590) == []
    assert len(job.silent_for(20)) == 1


def test_the_start_has_its_own_limit_and_each_step_of_it_counts() -> None:
    job = Watched()
    job.look()
    assert job.silent_for(3500) == []
    assert job.look(INITIALIZED) is None
    assert job.silent_for(3500) == []
    assert job.look(BUILT) is None
    assert len(job.silent_for(7200, INITIALIZED)) == 1  # a step seen before is none


@pytest.mark.parametrize("state", [{"running": False}, {"running": False, "queued": True}])
def test_time_in_which_the_job_does_not_run_does_not_count(state: dict[str, bool]) -> None:
    job = Watched().trained()
    assert job.silent_for(590) == []
    assert job.silent_for(100_000, **state) == []
    assert job.look(seconds=100_000) is None


def test_a_suspended_job_continues_where_it_was() -> None:
    job = Watched().trained()
    assert job.silent_for(590) == []
    assert job.silent_for(100_000, running=False) == []
    assert len(job.silent_for(30)) == 1


def test_a_requeued_job_starts_again() -> None:
    job = Watched().trained(10)
    job.look(running=False, queued=True)
    assert job.silent_for(3500) == []
    job.look(INITIALIZED)
    job.look(line(4))
    assert job.silent_for(590) == []
    assert len(job.silent_for(30)) == 1


def test_starting_again_and_again_in_one_job_is_no_progress() -> None:
    job = Watched(startup=600).trained(10)
    found: list[HealthFinding] = []
    for _ in range(12):
        found += job.silent_for(200)
        job.look(INITIALIZED)
        job.look(line(8))
    assert len(found) == 1


@pytest.mark.slow
@given(st.lists(st.integers(1, 60), min_size=3, max_size=40), st.integers(0, 3))
def test_a_restored_detector_continues(pauses: Sequence[int], cut: int) -> None:
    whole, parts = Watched(), Watched()
    for index, pause in enumerate(pauses):
        if index % 4 == cut:
            parts.detector = StallDetector(**parts.arguments, memory=parts.detector.memory())
            parts.detector.read([], now=parts.now, running=True)
        assert whole.look(line(index + 1), seconds=pause) == parts.look(line(index + 1), seconds=pause)
    assert whole.detector.limit == parts.detector.limit
    assert len(whole.silent_for(800)) == len(parts.silent_for(800)) == 1


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=100), st.floats(1, 30))
def test_no_alarm_while_iterations_come_and_always_one_when_they_stop(
    pauses: Sequence[float], startup: float
) -> None:
    job = Watched()
    job.look(seconds=startup)
    for number, pause in enumerate(pauses, 1):
        assert job.look(line(number, elapsed_ms=pause * 1000), seconds=pause) is None
    assert len(job.silent_for(max(600, 5 * max(*pauses, startup)) + 20)) == 1
