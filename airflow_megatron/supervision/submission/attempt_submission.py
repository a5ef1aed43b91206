"""Submitting an attempt: its run directory is put in order, it is submitted once, others are queued behind it.

Those are later attempts of its job, and the stages after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.supervision.attempt_preparation import StillWriting, prepare_attempt
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.supervision.submission.attempt_chain import extend_chain
from airflow_megatron.supervision.submission.stages_ahead import queue_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_megatron.slurm.remote.stage_records import StageRecord
    from airflow_megatron.slurm.submission.single_job import SubmissionOutcome
    from airflow_megatron.supervision.attempts import JobAttempts


def submit_attempt(
    attempts: JobAttempts,
    number: int,
    decided_early: Callable[[int], JobHandle | None],
    *,
    state: StageRecord | None = None,
    fresh_start: bool = False,
    origin: Mapping[str, Any] | None = None,
) -> JobHandle | StillWriting | SubmissionOutcome:
    """Submit an attempt exactly once, however often this is called.

    :param decided_early: asked with the first attempt of this run of the job: returns a reference where no job is
        needed, or raises
    :param state: what the cluster has recorded, where that is known
    :param fresh_start: set the run's checkpoints aside
    :param origin: who asked (DAG, run, task, try)
    :returns: the job; why the run directory cannot be used yet; or a ``deferred`` outcome, when Slurm cannot take it
    :raises RunNotFitError: when the attempt must not be submitted
    :raises SubmissionRefusedError: when sbatch refuses the script, or a secret cannot be had
    :raises TransportError: when the login node stays unreachable
    """
    prepared = prepare_attempt(attempts, number, state, fresh_start=fresh_start)
    if isinstance(prepared, StillWriting):
        attempts.log.info("%s", prepared.reason)
        return prepared
    early = decided_early(prepared.first)
    if early is not None:
        return early
    outcome = attempts.submit(number, prepared, origin=origin)
    if outcome.status == "deferred":
        attempts.log.warning("the job cannot be submitted now: %s", outcome.message)
        return outcome
    attempts.log.info("%s", outcome.message)
    extend_chain(attempts, number, str(outcome.job_id), prepared)
    queue_ahead(attempts, number, origin)
    return JobHandle(
        attempts.job.name,
        number,
        outcome.job_id,
        resumes_from=prepared.resumes_from,
        job_name=outcome.job_name,
        first=prepared.first,
        log_from=prepared.log_from,
    )
