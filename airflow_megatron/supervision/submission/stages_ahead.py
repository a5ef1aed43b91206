"""Queue the following stages behind a pending or running job (``ahead``).

:mod:`airflow_megatron.requirements.queue_order` selects the stages. Only first attempts are queued ahead, because a
later attempt depends on the results of the earlier ones.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError
from airflow_megatron.requirements.queue_order import ends_with_checkpoint, followers
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.submission.queue_ahead import (
    QueuedBehind,
    StageBefore,
    WithdrawnAhead,
    decision_in,
    parse_take_up,
    parse_waiting_jobs,
    parse_withdrawn_ahead,
    take_up_script,
    waiting_jobs_script,
    withdraw_ahead_script,
)
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.spec.layout.run_layout import AttemptDir, tracker_of
from airflow_megatron.supervision.attempt_preparation import StillWriting, prepare_attempt
from airflow_megatron.supervision.attempts import SubmissionRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.slurm.remote.records import TaskOrigin
    from airflow_megatron.slurm.verdicts.stage_records import StageRecord
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.supervision.attempts import JobAttempts

MOST_ASKED = 3
"""Maximum number of stages that are checked for attempts queued ahead when a job needs room in the queue."""
SUPERSEDED = "the stage before it runs again"


def jobs_of_point(job: Job, log: Any) -> list[Job]:
    """Return the pinned jobs of a job's point; none for a job without a stored plan."""
    if not job.pin or not job.point:
        return []
    try:
        return PinnedSweep.read(job.pin).jobs_of(job.point)
    except PinError as error:
        log.warning("%s; nothing is queued ahead", error)
        return []


def queue_ahead(attempts: JobAttempts, number: int, origin: TaskOrigin | None = None) -> None:
    """Queue the following stages behind a job's queued attempts, up to the depth in the spec.

    A stage that Slurm does not accept now, or whose state cannot be read now, is submitted after the previous stage.

    :param number: number of the oldest submitted attempt of the job that has not ended
    :param origin: the submitting task
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
    """Return the directories of all stages that may be queued behind a job; a stage precedes those it waits for."""
    if not job.ahead:
        return []
    return [other.stage_dir for other, _ in followers(job, jobs_of_point(job, log))][::-1]


def withdraw_ahead(attempts: JobAttempts) -> None:
    """Withdraw the stages queued behind a job that continues in another attempt, or has not finished.

    A job that has already started, because the previous stage appeared to have finished, is cancelled and its result
    does not count.
    """
    job = attempts.job
    if not job.ahead:
        return
    behind = {other.stage_dir: other for other, _ in followers(job, jobs_of_point(job, attempts.log))}
    for stage_dir, _ in withdrawn_stages(attempts, [*behind][::-1]):
        attempts.of_another(behind[stage_dir]).withdraw(SUPERSEDED, always=True)


def withdrawn_stages(attempts: JobAttempts, stage_dirs: Sequence[str]) -> Sequence[tuple[str, int]]:
    """Withdraw the attempts that stages have queued ahead; return those whose jobs have started, which continue.

    :param stage_dirs: directories of the stages; a stage precedes the stages that it waits for
    :raises TransportError: if the login node stays unreachable
    """
    return _withdrawn(attempts, stage_dirs).started if stage_dirs else ()


def _withdrawn(attempts: JobAttempts, stage_dirs: Sequence[str]) -> WithdrawnAhead:
    script = withdraw_ahead_script(stage_dirs, attempts.commands)
    outcome = attempts.answered(script, lambda answer: parse_withdrawn_ahead(stage_dirs, answer))
    for stage_dir, _ in outcome.withdrawn:
        attempts.log.info("withdrawn from the queue: %s", stage_dir.rpartition("/")[2])
    return outcome


def make_room(attempts: JobAttempts) -> bool:
    """Withdraw a job of the sweep that was queued ahead to make room for a current job; return whether there was one.

    The stages queued behind the withdrawn one are withdrawn too. They are all submitted again after their previous
    stages.

    :param attempts: attempts of the job for which the queue has no room
    :raises TransportError: if the login node stays unreachable
    """
    due = attempts.job
    if not due.pin:
        return False
    waiting = attempts.answered(waiting_jobs_script(attempts.commands), parse_waiting_jobs)
    if not any(name.startswith(f"{due.sweep}.") for name in waiting):
        return False
    try:
        jobs = PinnedSweep.read(due.pin).plan().jobs
    except PinError as error:
        attempts.log.warning("%s; no job that is queued ahead was withdrawn to make room", error)
        return False
    queued = [job for job in jobs if job.depends_on and attempt_of(job, 1).job_name in waiting]
    return any(
        _withdrawn(attempts, [*stages_behind(job, attempts.log), job.stage_dir]).withdrawn
        for job in queued[: -MOST_ASKED - 1 : -1]
        if job.stage_dir != due.stage_dir
    )


def take_up(attempts: JobAttempts, state: StageRecord) -> tuple[bool, StageRecord]:
    """Take over the attempt that was queued ahead, after the previous stage has finished.

    :param state: recorded state of the stage
    :returns: whether there is such an attempt, and the new recorded state without an unusable attempt
    :raises TransportError: if the login node stays unreachable
    """
    latest = state.latest
    if latest is None or latest.ahead is None or latest.job_id is None or state.verdict_on_newest is not None:
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
    attempts.log.info("job %s, which was queued ahead, is no longer needed", latest.job_id)
    withdraw_ahead(attempts)
    return False, attempts.state()


def _is_planned_so(job: Job, state: StageRecord) -> bool:
    record = state.submission
    return record is None or (record.digest == job_digest(job) and record.pin == job.pin)


class _Queue:
    """Extends the queue behind one job.

    :param tree: pairs of a job and its previous job, in the order of execution
    """

    def __init__(
        self,
        attempts: JobAttempts,
        number: int,
        tree: Sequence[tuple[Job, Job]],
        origin: TaskOrigin | None,
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
            # withdraw dependent jobs too: their dependencies would appear to have ended
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
        """Return number and id of the attempt queued behind the previous stage, none if that is not possible."""
        latest = state.latest
        if latest is not None:
            undecided = latest.ahead is not None and latest.decision is None
            if not undecided or latest.number != 1:
                return []  # it has run before or runs now, so its own task decides
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
    """Return the limits for attempts queued ahead, None if they leave no room; current jobs have priority."""
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
    """Return whether a queued job waits for other attempts of the previous stage than those in the queue."""
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
        # a training has finished if its last checkpoint exists
        () if by_checkpoint else job.outputs,
    )
