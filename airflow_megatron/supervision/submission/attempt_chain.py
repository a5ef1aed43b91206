"""Keeping attempts of a training queued behind the one that runs (``restart.chain``)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_megatron.slurm.submission.attempt_chain import parse_withdrawn, runs_after, withdraw_chain_script
from airflow_megatron.slurm.verdicts.verdict import Outcome
from airflow_megatron.supervision.attempts import SubmissionRefusedError

if TYPE_CHECKING:
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.supervision.attempt_changes import AttemptChanges
    from airflow_megatron.supervision.attempts import JobAttempts

_FOLLOWED = {Outcome.ROLLED_OVER, Outcome.RETRYABLE}


def is_chained(job: Job) -> bool:
    """Return whether attempts of the job are queued ahead: of a training whose attempts wait for nothing else."""
    return job.trains and job.restart.chain > 1 and not job.start_every_attempt


def extend_chain(attempts: JobAttempts, number: int, job_id: str, changes: AttemptChanges) -> None:
    """Queue attempts behind one that is submitted, until as many as the spec says are in the queue.

    What Slurm does not take now is submitted when it is due.

    :param number: of the attempt that is submitted
    :param job_id: its job
    :param changes: what that attempt does otherwise than planned; the following ones do it too
    """
    if not is_chained(attempts.job):
        return
    known = {attempt.number: attempt.job_id for attempt in attempts.state().attempts}
    for following in range(number + 1, number + attempts.job.restart.chain):
        following_id = known.get(following)
        if following_id is None:
            queued = dataclasses.replace(changes, resumes_from=0, after_job=job_id)
            try:
                outcome = attempts.submit(following, queued)
            except SubmissionRefusedError as error:
                attempts.log.warning("attempt %d is not queued ahead: %s", following, error)
                return
            attempts.log.info("%s", outcome.message)
            following_id = outcome.job_id
        if following_id is None:
            return
        job_id = following_id


def withdraw_chain(attempts: JobAttempts, after: int) -> None:
    """Cancel the attempts that are queued behind one, and forget them: that one was the last, or another follows it."""
    if not is_chained(attempts.job):
        return
    script = withdraw_chain_script(attempts.job.stage_dir, after, attempts.commands)
    numbers = attempts.answered(script, parse_withdrawn)
    if numbers:
        attempts.log.info("withdrawn from the queue: attempts %s", ", ".join(map(str, numbers)))


def follows_by_itself(attempts: JobAttempts, number: int, verdict: Verdict) -> bool:
    """Return whether the attempt after one that has ended is queued already, and right as it is.

    After a crash, which keeps it from running whatever the crash was, or when checkpoints have to be put in order
    first, it is not.
    """
    in_order = verdict.outcome in _FOLLOWED and not verdict.rollback and verdict.damaged_iteration is None
    if not in_order or not is_chained(attempts.job):
        return False
    recorded = {item.number: item for item in attempts.state().attempts}
    ended, following = recorded.get(number), recorded.get(number + 1)
    runs = ended is None or runs_after(ended.exit)
    return runs and following is not None and following.chained and following.job_id is not None
