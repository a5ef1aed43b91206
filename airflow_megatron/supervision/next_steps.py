"""From the verdict on an attempt to what follows from it; used by operators and the simulation.

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
from airflow_megatron.supervision.expected_ends import as_expected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.slurm.remote.stage_records import StageRecord
    from airflow_megatron.slurm.verdicts.occurrence import Occurrence
    from airflow_megatron.slurm.verdicts.restarts import NextStep, RestartPolicy
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.spec.model.jobs import Job


@dataclass(frozen=True)
class Ended:
    """An attempt that is over, or is to be stopped.

    :param verdict: on it
    :param cancelled: the job was meant to be cancelled, for good
    """

    verdict: Verdict
    cancelled: bool = False


def at_end(job: Job, verdict: Verdict, seen: Sequence[Occurrence]) -> Ended:
    """Return how an attempt ended, with what the spec expects and what showed at its end.

    :param job: says which ending the spec expects
    :param verdict: by what it left behind
    :param seen: what showed at its end
    """
    verdict = as_expected(job, verdict)
    if verdict.outcome is Outcome.DUPLICATE:
        return Ended(verdict)
    decided = deciding(seen, finished=verdict.outcome is Outcome.FINISHED)
    if decided is None:
        return Ended(verdict)
    return Ended(judged_with(verdict, decided), cancelled=decided.do == "cancel")


def while_running(seen: Iterable[Occurrence], job_id: str | None) -> Ended | None:
    """Return how an attempt ends because of what showed while it runs; None when it goes on."""
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
    """Return the verdict to be recorded on an attempt, and what follows from it.

    :param history: verdicts of the earlier attempts that count with it, oldest first
    :param policy: of the stage
    :param now: Unix time
    :param tracker: Megatron's tracker file
    :param trains: the stage is a training
    """
    verdict = replace(verdict, judged=now)
    if verdict.stopped and trains:
        # an attempt that hung before it saved has made no progress
        verdict = replace(verdict, iteration=tracked_iteration(tracker) or 0)
    verdict = with_progress(verdict, history)
    return verdict, next_step(history, verdict, policy)


def history(state: StageRecord, number: int) -> list[Verdict]:
    """Return the verdicts on the attempts before one that count with it, oldest first."""
    return series([attempt.verdict for attempt in state.attempts if attempt.number < number])
