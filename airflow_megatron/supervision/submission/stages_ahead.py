"""Keeping the stages after a job queued behind it while it waits or runs (``ahead``).

Which stages those are is in :mod:`airflow_megatron.requirements.queue_order`. Only first attempts are queued ahead:
what a later one has to begin with, its earlier ones decide.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError
from airflow_megatron.requirements.queue_order import ends_with_checkpoint, followers
from airflow_megatron.slurm.remote.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.queue_ahead import (
    QueuedBehind,
    StageBefore,
    decision_in,
    parse_take_up,
    parse_withdrawn_ahead,
    take_up_script,
    withdraw_ahead_script,
)
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.verdicts.recorded import verdict_on_newest
from airflow_megatron.spec.layout.run_layout import AttemptDir, tracker_of
from airflow_megatron.supervision.attempt_preparation import StillWriting, prepare_attempt
from airflow_megatron.supervision.attempts import SubmissionRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.slurm.remote.stage_records import StageRecord
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.supervision.attempts import JobAttempts

SUPERSEDED = "the stage before it runs again"


def jobs_of_point(job: Job, log: Any) -> list[Job]:
    """Return the jobs of a job's point as its run has pinned them; none for a job of no stored plan."""
    if not job.pin or not job.point:
        return []
    try:
        return PinnedSweep.read(job.pin).jobs_of(job.point)
    except PinError as error:
        log.warning("%s; nothing is queued ahead", error)
        return []


def queue_ahead(attempts: JobAttempts, number: int, origin: Mapping[str, Any] | None = None) -> None:
    """Queue the stages after a job behind its attempts that are in the queue, as deep as the spec says.

    What Slurm does not take now is submitted when it is due, and so is whatever cannot be asked about now.

    :param number: the oldest attempt of the job that is submitted and has not ended
    :param origin: who asked (DAG, run, task, try)
    """
    job = attempts.job
    if not job.ahead:
        return
    tree = list(followers(job, jobs_of_point(job, attempts.log), job.ahead))
    if not tree:
        return
    try:
        _Queue(attempts, number, tree, origin).extend()
    except (SubmissionRefusedError, TransportError) as error:
        attempts.log.warning("the stages after %s are not queued ahead: %s", job.stage, error)


def stages_behind(job: Job, log: Any) -> list[str]:
    """Return the directories of all stages that may be queued behind a job, those that wait for others first."""
    if not job.ahead:
        return []
    return [other.stage_dir for other, _ in followers(job, jobs_of_point(job, log))][::-1]


def withdraw_ahead(attempts: JobAttempts) -> None:
    """Cancel what is queued behind a job that goes on in another attempt, or has not finished, and forget it.

    A job that has started all the same, because the stage before seemed to have finished, is cancelled, and what it did
    does not count.
    """
    job = attempts.job
    if not job.ahead:
        return
    behind = {other.stage_dir: other for other, _ in followers(job, jobs_of_point(job, attempts.log))}
    for stage_dir, _ in withdrawn_stages(attempts, [*behind][::-1]):
        attempts.of_another(behind[stage_dir]).withdraw(SUPERSEDED, always=True)


def withdrawn_stages(attempts: JobAttempts, stage_dirs: Sequence[str]) -> Sequence[tuple[str, int]]:
    """Withdraw what stages have queued ahead; return those whose jobs have started, which go on.

    :param stage_dirs: those that wait for others first
    :raises TransportError: when the login node stays unreachable
    """
    if not stage_dirs:
        return ()
    script = withdraw_ahead_script(stage_dirs, attempts.commands)
    outcome = attempts.answered(script, lambda answer: parse_withdrawn_ahead(stage_dirs, answer))
    for stage_dir, _ in outcome.withdrawn:
        attempts.log.info("withdrawn from the queue: %s", stage_dir.rpartition("/")[2])
    return outcome.started


def take_up(attempts: JobAttempts, state: StageRecord) -> tuple[bool, StageRecord]:
    """Take up the attempt that was queued ahead for a job whose time has come.

    :param state: what the cluster has recorded
    :returns: whether there is one, and what is recorded now: one that cannot be used has gone
    :raises TransportError: when the login node stays unreachable
    """
    latest = state.latest
    if (
        latest is None
        or latest.ahead is None
        or latest.job_id is None
        or verdict_on_newest(state) is not None
    ):
        return False, state
    if decision_in(latest.decision) == "due":
        return False, state  # by an earlier try, or an earlier run of the task
    directory = AttemptDir(attempts.job.stage_dir, latest.number).path
    if _is_planned_so(attempts.job, state):
        taken = attempts.answered(take_up_script(directory, attempts.commands), parse_take_up)
    else:
        taken = bool(withdrawn_stages(attempts, [attempts.job.stage_dir]))
    if taken:
        attempts.log.info("attempt %d was queued ahead, as job %s", latest.number, latest.job_id)
        return True, state
    attempts.log.info("job %s, which was queued ahead, is of no use any more", latest.job_id)
    withdraw_ahead(attempts)
    return False, attempts.state()


def _is_planned_so(job: Job, state: StageRecord) -> bool:
    record = state.submission
    return record is None or (record.digest == job_digest(job) and record.pin == job.pin)


class _Queue:
    """Extends the queue behind one job.

    :param tree: (job, the one before it), each after the one before it
    """

    def __init__(
        self,
        attempts: JobAttempts,
        number: int,
        tree: Sequence[tuple[Job, Job]],
        origin: Mapping[str, Any] | None,
    ) -> None:
        self._attempts, self._number, self._tree, self._origin = attempts, number, tree, origin
        self._log = attempts.log

    def extend(self) -> None:
        states = self._states([self._attempts.job, *(job for job, _ in self._tree)])
        job = self._attempts.job
        queued: dict[str, list[tuple[int, str]]] = {job.name: _in_queue(states[job.stage_dir], self._number)}
        stale = {
            job.stage_dir
            for job, before in self._tree
            if queued.get(before.name) and _is_stale(states[job.stage_dir], before, queued[before.name])
        }
        if stale:
            # with what waits for them: Slurm would find the jobs that it waits for ended
            withdrawn_stages(self._attempts, [job.stage_dir for job, _ in self._tree][::-1])
            states = self._states([job for job, _ in self._tree])
        for job, before in self._tree:
            if ids := queued.get(before.name):
                queued[job.name] = self._queued(job, before, ids, states[job.stage_dir])

    def _states(self, jobs: Iterable[Job]) -> dict[str, StageRecord]:
        dirs = [job.stage_dir for job in jobs]
        return self._attempts.answered(
            stage_state_script(dirs), lambda answer: parse_stage_states(dirs, answer)
        )

    def _queued(
        self, job: Job, before: Job, ids: Sequence[tuple[int, str]], state: StageRecord
    ) -> list[tuple[int, str]]:
        """Return number and id of the attempt that is queued behind the one before, none where that cannot be."""
        latest = state.latest
        if latest is not None:
            undecided = latest.ahead is not None and latest.decision is None
            if not undecided or latest.number != 1:
                return []  # it has run before, or runs: its own task sees to it
            if latest.job_id is not None:
                return [(latest.number, latest.job_id)]
        elif state.verdict is not None or (job.trains and state.tracker is not None):
            return []
        own = self._attempts.of_another(job)
        limits = _half(own.limits)
        if limits is None:
            return []
        changes = prepare_attempt(own, 1, state)
        if isinstance(changes, StillWriting):
            return []
        outcome = own.submit(
            1, changes, origin=self._origin, before=_stage_before(before, ids), limits=limits
        )
        if outcome.job_id is None:
            self._log.info("%s is not queued ahead: %s", job.stage, outcome.message)
            return []
        self._log.info("%s is queued behind %s: %s", job.stage, before.stage, outcome.message)
        return [(1, outcome.job_id)]


def _half(limits: Sequence[QueueLimit]) -> list[QueueLimit] | None:
    """Return the limits for what is queued ahead, None where they leave no room: jobs that are due come first."""
    if any(limit.jobs < 2 for limit in limits):
        return None
    return [QueueLimit(limit.jobs // 2, limit.name_prefix) for limit in limits]


def _in_queue(state: StageRecord, number: int) -> list[tuple[int, str]]:
    return [
        (attempt.number, attempt.job_id)
        for attempt in state.attempts
        if attempt.number >= number and attempt.job_id is not None and attempt.verdict is None
    ]


def _is_stale(state: StageRecord, before: Job, ids: Sequence[tuple[int, str]]) -> bool:
    """Whether what is queued waits for other attempts of the stage before than those that are in the queue."""
    latest = state.latest
    if latest is None or latest.ahead is None or latest.decision not in (None, "decided.back"):
        return False
    behind = QueuedBehind.from_record(latest.ahead)
    wanted = tuple(job_id for _, job_id in ids)
    return (
        latest.decision is not None
        or behind is None
        or (behind.stage, behind.job_ids) != (before.stage, wanted)
    )


def _stage_before(job: Job, ids: Sequence[tuple[int, str]]) -> StageBefore:
    behind = QueuedBehind(
        job.stage, ids[0][0], ids[-1][0], tuple(job_id for _, job_id in ids), uuid.uuid4().hex
    )
    by_checkpoint = ends_with_checkpoint(job)
    return StageBefore(
        behind,
        job.stage_dir,
        tracker_of(job.checkpoint_dir) if by_checkpoint else "",
        job.last_iteration if by_checkpoint else None,
        # a training has finished by its checkpoint alone
        () if by_checkpoint else job.outputs,
    )
