"""Observations lead to a verdict and a next step, in one class for all callers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation, QueueRow
from airflow_megatron.slurm.verdicts.missing_job import MIN_ANSWERS, MissingJob
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.restarts import GiveUp, Restart, RestartPolicy
from airflow_megatron.slurm.verdicts.verdict import SETTLE_S, Expectation, Verdict
from airflow_megatron.supervision.attempt_follower import AttemptFollower, OwnConditions
from airflow_megatron.supervision.condition_watch import ConditionResult
from airflow_megatron.supervision.next_steps import concluded, while_running

if TYPE_CHECKING:
    from airflow_megatron.supervision.attempt_follower import Look

NOW = 1000.0
COMMAND = Expectation("command")
RUNNING = Observation(NOW, queue=QueueRow("7", "a", JobState.RUNNING), queue_ok=True, accounting_ok=True)
MISSING = Observation(NOW, queue_ok=True, accounting_ok=True)


def ended(state: JobState, code: int) -> Observation:
    row = AccountingRow("7", "a", state, state.value, code, 0, started=100.0, ended=500.0, elapsed=400.0)
    return Observation(NOW, queue_ok=True, accounting=row, accounting_ok=True)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def follower(clock: Clock, expectation: Expectation = COMMAND) -> AttemptFollower:
    return AttemptFollower(expectation, MissingJob("7", 60.0, clock), clock=clock)


def outcome_of(look: Look) -> Outcome:
    return look.verdict.outcome


def test_a_running_job_has_no_verdict(clock: Clock) -> None:
    look = follower(clock).look(RUNNING, b"")
    assert (outcome_of(look), look.has_ended, look.is_last(log_read=True)) == (Outcome.ACTIVE, False, False)


def test_an_ended_job_has_one_when_its_log_is_read(clock: Clock) -> None:
    follow = follower(clock)
    look = follow.look(ended(JobState.COMPLETED, 0), b"")
    assert follow.end(look, last=look.is_last(log_read=False)) is None
    verdict = follow.end(look, last=look.is_last(log_read=True))
    assert verdict is not None
    assert verdict[0].outcome is Outcome.FINISHED


def test_a_job_unknown_to_slurm_is_lost(clock: Clock) -> None:
    follow = follower(clock)
    for _ in range(MIN_ANSWERS):
        assert outcome_of(follow.look(MISSING, b"")) is Outcome.UNKNOWN
        clock.now += 10.0
    clock.now += 60.0
    assert outcome_of(follow.look(MISSING, b"")) is Outcome.RETRYABLE


def test_a_finish_condition_decides_after_the_visibility_delay(clock: Clock) -> None:
    follow, open_ = follower(clock), OwnConditions(finish=ConditionResult.NO, missing="file /r/x")
    assert outcome_of(follow.look(ended(JobState.COMPLETED, 0), b"", open_)) is Outcome.UNKNOWN
    clock.now += SETTLE_S
    assert outcome_of(follow.look(ended(JobState.COMPLETED, 0), b"", open_)) is Outcome.ROLLED_OVER
    holds = OwnConditions(finish=ConditionResult.YES)
    assert outcome_of(follow.look(ended(JobState.FAILED, 1), b"", holds)) is Outcome.FINISHED


@pytest.mark.parametrize("skew", [-3600.0, -59.0, -20.0, 0.0, 20.0, 60.0, 3600.0])
def test_the_login_nodes_clock_does_not_change_the_time_for_outputs_to_appear(
    clock: Clock, skew: float
) -> None:
    """A job that ended between two polls, while the clocks of the login node and of Slurm differ."""
    follow = follower(clock, Expectation("command", required_files=("/r/x",)))
    row = replace(ended(JobState.COMPLETED, 0).accounting, ended=NOW + 1.0)  # type: ignore[type-var]
    outcomes = []
    for second in range(0, 24, 2):
        clock.now = float(second)
        look = RUNNING if second == 0 else replace(ended(JobState.COMPLETED, 0), accounting=row)
        outcomes.append(outcome_of(follow.look(replace(look, time=NOW + second + skew), b"")))
    assert outcomes[:5] == [Outcome.ACTIVE, *[Outcome.UNKNOWN] * 4]
    assert outcomes[7:] == [Outcome.FAILED] * 5


def test_a_job_that_ended_long_ago_is_judged_at_once(clock: Clock) -> None:
    follow = follower(clock, Expectation("command", required_files=("/r/x",)))
    assert outcome_of(follow.look(ended(JobState.COMPLETED, 0), b"")) is not Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("finish", "cancelled"), [(None, True), (ConditionResult.NO, True), (ConditionResult.YES, False)]
)
def test_a_job_that_has_finished_is_not_cancelled(
    clock: Clock, finish: ConditionResult | None, cancelled: bool
) -> None:
    conditions = OwnConditions(cancel=ConditionResult.YES, finish=finish)
    assert follower(clock).look(ended(JobState.COMPLETED, 0), b"", conditions).is_cancelled is cancelled
    assert follower(clock).look(RUNNING, b"", conditions).is_cancelled


def test_a_job_that_has_announced_its_end_is_judged_by_what_it_left(clock: Clock) -> None:
    follow = follower(clock)
    look = follow.look(ended(JobState.CANCELLED, 0), b"")
    assert outcome_of(look) is Outcome.CANCELLED
    announced = [Occurrence("finish", "its last line")]
    verdict = follow.end(look, announced, last=True)
    assert verdict is not None
    assert (verdict[0].outcome, verdict[1]) == (Outcome.FINISHED, announced)
    assert follow.announced


def test_events_seen_at_an_apparent_end_are_kept(clock: Clock) -> None:
    follow = follower(clock)
    look = follow.look(ended(JobState.COMPLETED, 0), b"")
    assert follow.end(look, [Occurrence("notify", "a")], last=False) is None
    assert [item.reason for item in follow.see([Occurrence("notify", "b")])] == ["a", "b"]
    assert follow.see([]) == []


class TestNextSteps:
    LOST = Verdict(Outcome.RETRYABLE, "node failure", JobState.NODE_FAIL, iteration=10)

    def test_after_a_lost_node(self) -> None:
        verdict, step = concluded(self.LOST, [], RestartPolicy(), now=5.0)
        assert (verdict.judged, isinstance(step, Restart)) == (5.0, True)

    def test_the_progress_of_a_training_that_hung_is_that_of_its_tracker(self) -> None:
        stopped = while_running([Occurrence("restart", "idle")], "7")
        assert stopped is not None
        verdict, _ = concluded(
            stopped.verdict, [self.LOST], RestartPolicy(), now=5.0, tracker="10\n", trains=True
        )
        assert verdict.iteration == 10
        hung = [replace(verdict, judged=1.0)] * 2
        _, step = concluded(
            stopped.verdict,
            [self.LOST, *hung],
            RestartPolicy(no_progress=3),
            now=5.0,
            tracker="10",
            trains=True,
        )
        assert isinstance(step, GiveUp)

    def test_an_event_without_a_reaction_ends_nothing(self) -> None:
        assert while_running([Occurrence("notify", "x")], "7") is None

    def test_a_cancel_condition_is_permanent(self) -> None:
        stopped = while_running([Occurrence("cancel", "x")], "7")
        assert stopped is not None
        assert (stopped.cancelled, stopped.verdict.outcome) == (True, Outcome.CANCELLED)
