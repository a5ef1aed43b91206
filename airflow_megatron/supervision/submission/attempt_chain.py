"""Queue further attempts of a training behind the current one (``restart.chain``)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.submission.attempt_chain import parse_withdrawn, runs_after, withdraw_chain_script
from airflow_megatron.slurm.verdicts.verdict import Outcome
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.supervision.attempts import SubmissionRefusedError

if TYPE_CHECKING:
    from airflow_megatron.slurm.remote.records import TaskOrigin
    from airflow_megatron.slurm.verdicts.stage_records import StageRecord
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.supervision.attempt_changes import AttemptChanges
    from airflow_megatron.supervision.attempts import JobAttempts

_FOLLOWED = {Outcome.ROLLED_OVER, Outcome.RETRYABLE}
_LOST = {JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL}


def is_chained(job: Job) -> bool:
    """Return whether attempts of the job are chained: true for a training whose attempts have no other dependency."""
    return job.trains and job.restart.chain > 1 and not job.start_every_attempt


def needs_no_further_attempt(attempts: JobAttempts) -> bool:
    """Return whether further chained attempts would find the training finished, and end at once."""
    job = attempts.job
    if not is_chained(job):
        return False
    tracked = tracked_iteration(attempts.state().tracker)
    return tracked is not None and tracked == job.last_iteration


def without_later_attempts(job: Job, verdict: Verdict, state: StageRecord, number: int) -> Verdict:
    """Return the verdict on an attempt, without the progress of the chained attempts that have started since.

    Several attempts of a chain may end before the first one is judged, by the checkpoints of the last one. The next
    attempt that started has recorded the checkpoint at its start, and it does not start if that is the last one.

    :param verdict: verdict on the attempt, by the newest checkpoint
    :param state: recorded state of the stage
    :param number: number of the attempt
    """
    later = (item for item in state.attempts if item.number > number and item.chained)
    # one that was cancelled while it waited has not started
    following = next((item for item in later if item.began_at is not None), None)
    if following is None or following.began_at is None or not is_chained(job):
        return verdict
    if verdict.iteration is None or following.began_at >= verdict.iteration:
        return verdict
    own = dataclasses.replace(verdict, iteration=following.began_at)
    if verdict.outcome is not Outcome.FINISHED:
        return own
    return dataclasses.replace(
        own,
        outcome=Outcome.RETRYABLE if verdict.state in _LOST else Outcome.ROLLED_OVER,
        reason=f"attempt {following.number} continued from iteration {following.began_at} of {job.last_iteration}",
        warning=None,
    )


def extend_chain(
    attempts: JobAttempts,
    number: int,
    job_id: str,
    changes: AttemptChanges,
    origin: TaskOrigin | None = None,
) -> None:
    """Queue attempts behind a submitted one, up to the number in the spec.

    Each waits for all earlier ones: if one that waits is cancelled, the next one must not run beside an earlier one.
    An attempt that Slurm does not accept now is submitted at the end of the previous attempt.

    :param number: number of the submitted attempt
    :param job_id: Slurm id of the submitted attempt
    :param changes: differences of that attempt from the plan, which apply to the queued attempts too
    :param origin: the submitting task
    """
    if not is_chained(attempts.job):
        return
    known = {attempt.number: attempt.job_id for attempt in attempts.state().attempts}
    before = [job_id]
    for following in range(number + 1, number + attempts.job.restart.chain):
        following_id = known.get(following)
        if following_id is None:
            queued = dataclasses.replace(changes, resumes_from=0, after_job=":".join(before))
            try:
                outcome = attempts.submit(following, queued, origin=origin)
            except SubmissionRefusedError as error:
                attempts.log.warning("attempt %d is not queued ahead: %s", following, error)
                return
            attempts.log.info("%s", outcome.message)
            following_id = outcome.job_id
        if following_id is None:
            return
        before.append(following_id)


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
