"""The time after which a job that Slurm does not report counts as lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation, QueueRow, Unreachable
from airflow_megatron.slurm.verdicts.missing_job import MissingJob
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict, judge

MISSING = Observation(time=1000.0, queue_ok=True, accounting_ok=True)
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
    assert watching.look(MISSING, 6).outcome is Outcome.UNKNOWN
    verdict = watching.look(MISSING)
    assert (verdict.outcome, verdict.job_id) == (Outcome.RETRYABLE, "7")
    assert verdict.reason.startswith("the job is in neither squeue nor sacct")
    assert "for 60 s: Slurm has forgotten it" in verdict.reason


@pytest.mark.parametrize(
    "observation",
    [
        replace(MISSING, accounting=RUNNING),  # slurmdbd received the start, but never the end
        replace(MISSING, accounting_ok=False, accounting_enabled=False),
    ],
    ids=["runaway", "no_accounting"],
)
def test_also_lost(observation: Observation) -> None:
    assert Watching().look(observation, 7).outcome is Outcome.RETRYABLE


@pytest.mark.parametrize(
    "observation",
    [
        Observation(time=1000.0, unreachable=Unreachable(0.0, "no route", 3)),
        replace(MISSING, queue_ok=False),
        replace(MISSING, accounting_ok=False),
        replace(MISSING, queue=QueueRow("7", "x.a1", JobState.PENDING)),
        replace(MISSING, accounting_ok=False, exit=EXIT),
    ],
    ids=["unreachable", "no_squeue", "no_sacct", "queued", "ended_by_itself"],
)
def test_never_lost(observation: Observation) -> None:
    verdict = Watching().look(observation, 100)
    assert verdict.outcome is not Outcome.RETRYABLE
    assert verdict == judge(observation, Expectation("command"))


def test_a_visible_job_restarts_the_window() -> None:
    watching = Watching()
    watching.look(MISSING, 6)
    watching.look(replace(MISSING, queue=QueueRow("7", "x.a1", JobState.RUNNING)))
    assert watching.look(MISSING, 6).outcome is Outcome.UNKNOWN
    assert watching.look(MISSING).outcome is Outcome.RETRYABLE


def test_missing_answers_neither_count_nor_restart_the_window() -> None:
    watching = Watching()
    watching.look(MISSING)
    watching.look(Observation(time=1000.0, unreachable=Unreachable(0.0, "no route", 3)), 20)
    assert watching.look(MISSING).outcome is Outcome.UNKNOWN  # two answers
    assert watching.look(MISSING).outcome is Outcome.RETRYABLE


def test_a_job_whose_log_grows_is_not_lost() -> None:
    watching = Watching()
    for size in range(20):
        assert watching.look(replace(MISSING, log_size=size)).outcome is Outcome.UNKNOWN
    assert watching.look(replace(MISSING, log_size=19), 6).outcome is Outcome.RETRYABLE
