"""The next step after the verdict on an attempt; used by operators and the simulation.

::

    verdict ─ expected end ─► ─ what decided at its end ─► ─ time ─► ─ tracker ─► ─ progress ─► next step
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.progress import with_progress
from airflow_megatron.slurm.verdicts.restarts import (
    deciding,
    judged_with,
    next_step,
    series,
    stopping_verdict,
)
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.supervision.expected_outcomes import as_expected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.slurm.verdicts.occurrence import Occurrence
    from airflow_megatron.slurm.verdicts.restarts import NextStep, RestartPolicy
    from airflow_megatron.slurm.verdicts.stage_records import StageRecord
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.spec.model.jobs import Job


@dataclass(frozen=True)
class Ended:
    """An attempt that has ended, or must be stopped.

    :param verdict: verdict on the attempt
    :param cancelled: whether the job is cancelled intentionally and finally
    """

    verdict: Verdict
    cancelled: bool = False


def at_end(job: Job, verdict: Verdict, seen: Sequence[Occurrence]) -> Ended:
    """Return the end of an attempt, changed by the spec's expectation and by occurrences at the end.

    :param job: the job, with the expected outcome
    :param verdict: verdict from the job's state and files
    :param seen: occurrences at the end
    """
    verdict = as_expected(job, verdict)
    if verdict.outcome is Outcome.DUPLICATE:
        return Ended(verdict)
    decided = deciding(seen, finished=verdict.outcome is Outcome.FINISHED)
    if decided is None:
        return Ended(verdict)
    return Ended(judged_with(verdict, decided), cancelled=decided.do == "cancel")


def while_running(seen: Iterable[Occurrence], job_id: str | None) -> Ended | None:
    """Return the end of a running attempt that an occurrence requests; None if the attempt continues."""
    decided = deciding(seen)
    if decided is None:
        return None
    verdict = stopping_verdict(decided, job_id)
    return Ended(verdict, cancelled=verdict.outcome is Outcome.CANCELLED)


def concluded(
    verdict: Verdict,
    history: Sequence[Verdict],
    policy: RestartPolicy,
    *,
    now: float,
    tracker: str | None = None,
    trains: bool = False,
) -> tuple[Verdict, NextStep]:
    """Return the verdict to record on an attempt, and the next step.

    :param history: verdicts of the earlier attempts of the same series, oldest first
    :param policy: restart policy of the stage
    :param now: Unix time
    :param tracker: text of Megatron's tracker file
    :param trains: whether the stage is a training
    """
    verdict = replace(verdict, judged=now)
    if verdict.stopped and trains:
        # an attempt that hung before it saved has made no progress
        verdict = replace(verdict, iteration=tracked_iteration(tracker) or 0)
    verdict = with_progress(verdict, history)
    return verdict, next_step(history, verdict, policy)


def history(state: StageRecord, number: int) -> list[Verdict]:
    """Return the verdicts on the earlier attempts of the same series, oldest first."""
    return series([attempt.verdict for attempt in state.attempts if attempt.number < number])
