"""Queue further attempts of a training behind the current one (``restart.chain``)."""

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
    """Return whether attempts of the job are chained: true for a training whose attempts have no other dependency."""
    return job.trains and job.restart.chain > 1 and not job.start_every_attempt


def extend_chain(attempts: JobAttempts, number: int, job_id: str, changes: AttemptChanges) -> None:
    """Queue attempts behind a submitted one, up to the number in the spec.

    An attempt that Slurm does not accept now is submitted at the end of the previous attempt.

    :param number: number of the submitted attempt
    :param job_id: Slurm id of the submitted attempt
    :param changes: differences of that attempt from the plan, which apply to the queued attempts too
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
    """Withdraw the attempts queued behind an attempt, because it was the last, or a different attempt follows it."""
    if not is_chained(attempts.job):
        return
    script = withdraw_chain_script(attempts.job.stage_dir, after, attempts.commands)
    numbers = attempts.answered(script, parse_withdrawn)
    if numbers:
        attempts.log.info("withdrawn from the queue: attempts %s", ", ".join(map(str, numbers)))


def follows_by_itself(attempts: JobAttempts, number: int, verdict: Verdict) -> bool:
    """Return whether the attempt after an ended one is queued already and can run unchanged.

    It cannot run after a crash, or if checkpoints must be repaired first.
    """
    in_order = verdict.outcome in _FOLLOWED and not verdict.rollback and verdict.damaged_iteration is None
    if not in_order or not is_chained(attempts.job):
        return False
    recorded = {item.number: item for item in attempts.state().attempts}
    ended, following = recorded.get(number), recorded.get(number + 1)
    runs = ended is None or runs_after(ended.exit)
    return runs and following is not None and following.chained and following.job_id is not None
