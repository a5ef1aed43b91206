"""Submission of an attempt: prepare its run directory, submit it exactly once, and queue further jobs behind it.

The further jobs are later attempts of the same job, and the following stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.supervision.attempt_preparation import StillWriting, prepare_attempt
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.supervision.submission.attempt_chain import (
    extend_chain,
    needs_no_further_attempt,
)
from airflow_megatron.supervision.submission.stages_ahead import make_room, queue_ahead

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.slurm.remote.records import TaskOrigin
    from airflow_megatron.slurm.submission.single_job import SubmissionOutcome
    from airflow_megatron.slurm.verdicts.stage_records import StageRecord
    from airflow_megatron.supervision.attempts import JobAttempts


def submit_attempt(
    attempts: JobAttempts,
    number: int,
    decided_early: Callable[[int], JobHandle | None],
    *,
    state: StageRecord | None = None,
    fresh_start: bool = False,
    origin: TaskOrigin | None = None,
) -> JobHandle | StillWriting | SubmissionOutcome:
    """Submit an attempt exactly once; the call may be repeated.

    :param decided_early: called with the first attempt of this run of the job; returns a reference if no job is needed,
        or raises
    :param state: recorded state, if known
    :param fresh_start: rename the run's checkpoints, so that training starts from scratch
    :param origin: the submitting task
    :returns: the job; the reason why the run directory cannot be used yet; or a ``deferred`` outcome
    :raises RunNotFitError: if the attempt must not be submitted
    :raises SubmissionRefusedError: if sbatch refuses the script, or a secret is not available
    :raises TransportError: if the login node stays unreachable
    """
    prepared = prepare_attempt(attempts, number, state, fresh_start=fresh_start)
    if isinstance(prepared, StillWriting):
        attempts.log.info("%s", prepared.reason)
        return prepared
    early = decided_early(prepared.first)
    if early is not None:
        return early
    outcome = attempts.submit(number, prepared, origin=origin)
    if outcome.status == "deferred" and outcome.waits_for != "recovery" and make_room(attempts):
        outcome = attempts.submit(number, prepared, origin=origin)
    if outcome.status == "deferred":
        attempts.log.warning("the job cannot be submitted now: %s", outcome.message)
        return outcome
    attempts.log.info("%s", outcome.message)
    if outcome.status in ("recorded", "adopted"):
        prepare_attempt(attempts, number)  # another run may have submitted another command meanwhile
    if not needs_no_further_attempt(attempts):
        extend_chain(attempts, number, str(outcome.job_id), prepared, origin)
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
