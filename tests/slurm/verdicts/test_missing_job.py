"""When a job that Slurm does not know is taken for lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation, QueueRow, Unreachable
from airflow_megatron.slurm.verdicts.missing_job import MissingJob
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict, judge

GONE = Observation(time=1000.0, queue_ok=True, accounting_ok=True)
RUNNING = AccountingRow("7", "x.a1", JobState.RUNNING, "RUNNING", 0, 0)
EXIT = ExitRecord.from_json({"exit_code": 0, "ended": 900.0, "job_id": "7"})


class Watching:
    """One job, looked at every 10 s."""

    def __init__(self, window_s: float = 60.0) -> None:
        self.now = 0.0
        self.missing_job = MissingJob("7", window_s, clock=lambda: self.now)

    def look(self, observation: Observation, times: int = 1) -> Verdict:
        for _ in range(times):
            verdict = judge(observation, Expectation("command"))
            verdict = self.missing_job.weigh(verdict, observation)
            self.now += 10
        return verdict


def test_lost_after_the_window() -> None:
    watching = Watching()
    assert watching.look(GONE, 6).outcome is Outcome.UNKNOWN
    verdict = watching.look(GONE)
    assert (verdict.outcome, verdict.job_id) == (Outcome.RETRYABLE, "7")
    assert verdict.reason.startswith("the job is in neither squeue nor sacct")
    assert "for 60 s: Slurm has forgotten it" in verdict.reason


@pytest.mark.parametrize(
    "observation",
    [
        replace(GONE, accounting=RUNNING),  # slurmdbd was told of the start, and never of the end
        replace(GONE, accounting_ok=False, accounting_enabled=False),
    ],
    ids=["runaway", "no_accounting"],
)
def test_lost_as_well(observation: Observation) -> None:
    assert Watching().look(observation, 7).outcome is Outcome.RETRYABLE


@pytest.mark.parametrize(
    "observation",
    [
        Observation(time=1000.0, unreachable=Unreachable(0.0, "no route", 3)),
        replace(GONE, queue_ok=False),
        replace(GONE, accounting_ok=False),
        replace(GONE, queue=QueueRow("7", "x.a1", JobState.PENDING)),
        replace(GONE, accounting_ok=False, exit=EXIT),
    ],
    ids=["unreachable", "no_squeue", "no_sacct", "queued", "ended_by_itself"],
)
def test_never_lost(observation: Observation) -> None:
    verdict = Watching().look(observation, 100)
    assert verdict.outcome is not Outcome.RETRYABLE
    assert verdict == judge(observation, Expectation("command"))


def test_seen_again_starts_anew() -> None:
    watching = Watching()
    watching.look(GONE, 6)
    watching.look(replace(GONE, queue=QueueRow("7", "x.a1", JobState.RUNNING)))
    assert watching.look(GONE, 6).outcome is Outcome.UNKNOWN
    assert watching.look(GONE).outcome is Outcome.RETRYABLE


def test_answers_that_do_not_come_neither_count_nor_start_anew() -> None:
    watching = Watching()
    watching.look(GONE)
    watching.look(Observation(time=1000.0, unreachable=Unreachable(0.0, "no route", 3)), 20)
    assert watching.look(GONE).outcome is Outcome.UNKNOWN  # two answers
    assert watching.look(GONE).outcome is Outcome.RETRYABLE


def test_a_job_whose_log_grows_lives() -> None:
    watching = Watching()
    for size in range(20):
        assert watching.look(replace(GONE, log_size=size)).outcome is Outcome.UNKNOWN
    assert watching.look(replace(GONE, log_size=19), 6).outcome is Outcome.RETRYABLE
