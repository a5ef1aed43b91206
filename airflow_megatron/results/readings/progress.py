"""The state of every job of a sweep, as a grid of points × stages.

The grid is derived from a snapshot of the run directories. Without the states of Slurm's queue, a job that Slurm has
just killed is still shown as running until its verdict is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.reasons import help_needed
from airflow_megatron.slurm.submission.refusals import described_refusal
from airflow_megatron.slurm.verdicts.restarts import explained
from airflow_megatron.slurm.verdicts.verdict import Outcome
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.logs.log_lines import IterationRecord
    from airflow_megatron.results.readings.snapshot import AttemptSnapshot, RunSnapshot, SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.slurm.states.observation import QueueRow
    from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict


class StageState(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    """Nothing submitted yet."""
    PENDING = "pending"
    """Submitted, but not yet running."""
    RUNNING = "running"
    RESTARTING = "restarting"
    """An attempt ended before the job was done, and the next one is not running yet."""
    ENDED = "ended"
    """The last attempt ended and has no verdict yet."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    """Nothing submitted, because an earlier job has ended for good without the result that this one needs."""

    @property
    def is_final(self) -> bool:
        """Whether the state will not change without user action."""
        return self in (StageState.FINISHED, *_WITHOUT_RESULT)

    @property
    def letter(self) -> str:
        """Its letter in the data of the web page and of the report's page."""
        return _LETTERS[self]


_WITHOUT_RESULT: Final = (StageState.FAILED, StageState.CANCELLED, StageState.BLOCKED)
_LETTERS: Final[Mapping[StageState, str]] = {
    StageState.WAITING: "w",
    StageState.PENDING: "q",
    StageState.RUNNING: "r",
    StageState.ENDED: "r",
    StageState.RESTARTING: "t",
    StageState.FINISHED: "f",
    StageState.FAILED: "x",
    StageState.CANCELLED: "s",
    StageState.BLOCKED: "u",
}


@dataclass(frozen=True, slots=True)
class StageStatus:
    """The state of one job.

    :param point: name of its point
    :param stage: name of its stage
    :param job: name of the job
    :param state: its state
    :param attempts: number of submissions so far
    :param job_id: Slurm job id of the last submission
    :param iteration: last logged training iteration
    :param train_iters: iteration at which training ends
    :param loss: last logged training loss (nats per token); NaN if the training diverged
    :param seconds_left: seconds until the last iteration of a training, estimated from the last logged iterations
    :param reason: why it failed, was cancelled or is restarted, as stated by the verdict; why it waits in the queue, as
        stated by Slurm; which earlier job blocks it
    :param intended: whether a condition of its own cancelled it, as specified; for a blocked job, whether a condition
        cancelled the job that blocks it
    :param behind: while it waits: the stage on which its early submission depends
    """

    point: str
    stage: str
    job: str
    state: StageState
    attempts: int = 0
    job_id: str | None = None
    iteration: int | None = None
    train_iters: int | None = None
    loss: float | None = None
    seconds_left: float | None = None
    reason: str = ""
    intended: bool = False
    behind: str = ""

    @property
    def text(self) -> str:
        """Short description of the state, for example ``running 40/100 loss 3.21``."""
        words: list[str] = ["ended, verdict pending" if self.state is StageState.ENDED else self.state.value]
        if self.behind:
            words = [f"queued behind {self.behind}"]
        if self.iteration is not None and self.state not in (
            StageState.WAITING,
            StageState.BLOCKED,
            StageState.FINISHED,
        ):
            words.append(f"{self.iteration}/{self.train_iters}" if self.train_iters else str(self.iteration))
        if self.loss is not None and self.state not in (StageState.WAITING, StageState.BLOCKED):
            words.append(f"loss {self.loss:.3f}")
        if self.attempts > 1:
            words.append(f"(attempt {self.attempts})")
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data; a NaN loss becomes None."""
        data = {name: getattr(self, name) for name in _STATUS_FIELDS}
        data["state"] = self.state.value
        data["loss"] = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        return data


_STATUS_FIELDS: Final = tuple(item.name for item in fields(StageStatus))


@dataclass(frozen=True, slots=True)
class ProgressGrid:
    """The jobs of a sweep by point and stage, in the plan's order.

    :param without_queue: clusters whose squeue did not answer; the states of their jobs are those of the files
    """

    points: tuple[str, ...]
    stages: tuple[str, ...]
    cells: Mapping[tuple[str, str], StageStatus]
    without_queue: tuple[str, ...] = ()

    def count(self, state: StageState) -> int:
        """Count the jobs in a state."""
        return sum(status.state is state for status in self.cells.values())

    @property
    def is_final(self) -> bool:
        """Whether no job will change without user action."""
        return all(status.state.is_final for status in self.cells.values())

    def summary(self) -> str:
        """Count the jobs by state in one line: ``12 jobs: 3 finished, 2 running, 7 waiting``."""
        counts = ", ".join(f"{number} {state}" for state, number in self.counts().items())
        if not counts:
            return "no jobs"
        where = f" (squeue does not answer on {', '.join(self.without_queue)}: states are from files alone)"
        return f"{counted(len(self.cells), 'job')}: {counts}{where if self.without_queue else ''}"

    def counts(self) -> dict[str, int]:
        """Count the jobs by state, without states that no job has."""
        return {state.value: number for state in _SUMMARY_ORDER if (number := self.count(state))}

    def to_json(self) -> dict[str, Any]:
        """Return JSON data: the counts, and one object for each job."""
        jobs = [status.to_json() for status in self.cells.values()]
        return {"counts": self.counts(), "without_queue": list(self.without_queue), "jobs": jobs}


_SUMMARY_ORDER: Final = (
    StageState.FINISHED,
    StageState.RUNNING,
    StageState.ENDED,
    StageState.RESTARTING,
    StageState.PENDING,
    StageState.WAITING,
    StageState.BLOCKED,
    StageState.FAILED,
    StageState.CANCELLED,
)
_VERDICT_STATES: Final[Mapping[Outcome, StageState]] = {
    Outcome.FINISHED: StageState.FINISHED,
    Outcome.FAILED: StageState.FAILED,
    Outcome.OUT_OF_MEMORY: StageState.FAILED,
    Outcome.CANCELLED: StageState.CANCELLED,
    Outcome.ROLLED_OVER: StageState.RESTARTING,
    Outcome.RETRYABLE: StageState.RESTARTING,
}
_ENDINGS: Final = {StageState.FAILED: "has failed", StageState.CANCELLED: "was cancelled"}
_RUNNING: Final = frozenset(
    {
        JobState.RUNNING,
        JobState.COMPLETING,
        JobState.RESIZING,
        JobState.SIGNALING,
        JobState.STAGE_OUT,
        JobState.STOPPED,
        JobState.SUSPENDED,
    }
)
"""States of jobs that have their nodes."""


def progress_grid(
    snapshot: SweepSnapshot, jobs: Sequence[SweepJob], *, queue: Mapping[str, QueueRow] | None = None
) -> ProgressGrid:
    """Return the state of every job.

    :param snapshot: the run directories.
    :param jobs: the jobs of the plan.
    :param queue: Slurm job id → row of the jobs that squeue lists, including ended ones; None if unknown.
    :returns: the grid.
    """
    cells = {
        (job.point, job.stage): stage_status(snapshot.run(job.run_dir), job, queue=queue) for job in jobs
    }
    of_name = {job.name: job for job in jobs}
    for job in jobs:  # parents come first
        status = cells[job.point, job.stage]
        if status.state is StageState.WAITING:
            parents = [
                (cells[parent.point, parent.stage], until, snapshot.run(parent.run_dir))
                for name, until in job.after
                if (parent := of_name.get(name)) is not None
            ]
            cells[job.point, job.stage] = _blocked(status, parents)
    return ProgressGrid(
        points=tuple(dict.fromkeys(job.point for job in jobs)),
        stages=tuple(dict.fromkeys(job.stage for job in jobs)),
        cells=cells,
    )


def _blocked(status: StageStatus, parents: Sequence[tuple[StageStatus, str, RunSnapshot]]) -> StageStatus:
    """Return the status of a job that waits: blocked if an earlier job can no longer give what it waits for.

    A line of a log and a condition may hold although the earlier job has failed; they are decided where they are
    evaluated.

    :param parents: for each earlier job its status, what the job waits for, and the earlier job's run directory
    """
    for parent, until, run in parents:
        what, _, detail = until.partition(" ")
        if parent.state is StageState.BLOCKED and what != "condition":
            reason = f"{parent.stage} is blocked"
        elif parent.state not in _WITHOUT_RESULT:
            continue
        elif what == "finished":
            reason = f"{parent.stage} {_ENDINGS[parent.state]}"
        elif what == "checkpoint" and detail not in map(str, run.checkpoints):
            reason = f"{parent.stage} {_ENDINGS[parent.state]} without checkpoint {detail}"
        else:
            continue
        return replace(status, state=StageState.BLOCKED, reason=reason, intended=parent.intended)
    return status


def stage_status(
    run: RunSnapshot, job: SweepJob, *, queue: Mapping[str, QueueRow] | None = None
) -> StageStatus:
    """Return the state of one job.

    :param run: snapshot of the job's run directory.
    :param job: the job.
    :param queue: as for :func:`progress_grid`.
    :returns: its status.
    """
    attempts = run.attempts.get(job.stage, [])
    verdict = run.verdicts.get(job.stage)
    # a job that waits in the queue for another job is not due
    due = [item for item in attempts if item.started or not item.chained]
    latest = due[-1] if due else None
    row = (queue or {}).get(latest.job_id) if latest is not None and latest.job_id else None
    state = _state(run, job, latest, verdict, row, queue_known=queue is not None)
    refusal = _refusal(latest, verdict)
    if refusal:
        state = StageState.FAILED
    behind = _behind(state, latest, row)
    iteration = train_iters = loss = seconds_left = None
    if job.reported_as == "benchmark" or run.has_training(job):
        train_iters = job.train_iters
        last = _last_iteration(run, job)
        if last is not None:
            iteration, train_iters = last.iteration, last.train_iters
            loss = float("nan") if last.is_nan else last.loss
            if state is StageState.RUNNING and last.elapsed_ms and train_iters:
                seconds_left = max(0, train_iters - last.iteration) * last.elapsed_ms / 1000
    return StageStatus(
        point=job.point,
        stage=job.stage,
        job=job.name,
        state=state,
        attempts=latest.number if latest else 0,
        job_id=latest.job_id if latest else None,
        iteration=iteration,
        train_iters=train_iters,
        loss=loss,
        seconds_left=seconds_left,
        reason=refusal
        or _queue_reason(state, row, behind)
        or _reason(state, _of_attempt(state, latest) or verdict),
        behind=behind,
        intended=state is StageState.CANCELLED and verdict is not None and verdict.intended,
    )


def _refusal(latest: AttemptSnapshot | None, verdict: RecordedVerdict | None) -> str:
    """Return why no job of a stage that was due was accepted, empty otherwise."""
    if latest is None or not latest.refusal or (latest.job is not None and latest.job.behind):
        return ""
    finished = verdict is not None and verdict.outcome is Outcome.FINISHED
    return "" if finished else shown(described_refusal(latest.refusal))


def _behind(state: StageState, latest: AttemptSnapshot | None, row: QueueRow | None) -> str:
    record = latest.job if latest is not None and state is StageState.PENDING else None
    depends = row is None or not row.reason or row.reason.startswith("Dependency")
    return record.behind if record is not None and depends else ""


def _queue_reason(state: StageState, row: QueueRow | None, behind: str) -> str:
    """Return why a job that squeue lists does not run."""
    if row is None or behind:
        return ""
    if state is StageState.RUNNING:
        stopped = row.state in (JobState.SUSPENDED, JobState.STOPPED)
        return f"it does not run: Slurm has it as {row.state.value}" if stopped else ""
    return help_needed(row) or row.reason if state is StageState.PENDING else ""


def _of_attempt(state: StageState, latest: AttemptSnapshot | None) -> RecordedVerdict | None:
    return latest.verdict if latest is not None and state is StageState.RESTARTING else None


def _reason(state: StageState, recorded: RecordedVerdict | None) -> str:
    verdict = recorded.verdict if recorded is not None else None
    if state is StageState.FINISHED:
        warning = verdict.warning if verdict is not None else None
        return f"warning: {shown(warning)}" if warning else ""
    if state is StageState.CANCELLED and (recorded is None or recorded.outcome is not Outcome.CANCELLED):
        return "cancelled in Slurm; there is no verdict yet"
    if state not in (StageState.FAILED, StageState.CANCELLED, StageState.RESTARTING) or recorded is None:
        return ""
    return shown(explained(recorded.reason, verdict.line if verdict is not None else None))


def _state(
    run: RunSnapshot,
    job: SweepJob,
    latest: AttemptSnapshot | None,
    verdict: RecordedVerdict | None,
    row: QueueRow | None,
    *,
    queue_known: bool,
) -> StageState:
    judged = _VERDICT_STATES.get(verdict.outcome) if verdict is not None and verdict.outcome else None
    if judged is not None and verdict is not None and latest is not None:
        # A verdict on an earlier attempt no longer counts after another submission.
        job_id = verdict.verdict.job_id if verdict.verdict is not None else None
        if job_id and latest.job_id and job_id != latest.job_id:
            judged = None
    if judged is not None and judged.is_final:
        return judged
    if latest is None:
        return judged or StageState.WAITING
    if row is not None and not row.state.ended and row.state is not JobState.UNKNOWN:
        return StageState.RUNNING if row.state in _RUNNING else StageState.PENDING
    if row is not None and row.state is JobState.CANCELLED and judged is None:
        return StageState.CANCELLED
    if latest.exit is not None:
        return judged or _ended(latest)
    if judged is not None:
        return judged
    if queue_known and latest.job_id and (row is None or row.state.ended):
        # a job that has left the queue, or that squeue lists as ended, has ended, even if its files show no end
        return _ended(latest)
    logged = any(log.stage == job.stage and log.attempt == latest.number for log in run.logs)
    if latest.started or logged:
        return StageState.RUNNING
    return StageState.PENDING if latest.job_id else StageState.WAITING


def _ended(latest: AttemptSnapshot) -> StageState:
    """Return the state of a stage without a verdict; if its attempt has one, the next attempt follows after a pause."""
    judged = latest.verdict is not None and latest.verdict.outcome is not Outcome.FINISHED
    return StageState.RESTARTING if judged else StageState.ENDED


def _last_iteration(run: RunSnapshot, job: SweepJob) -> IterationRecord | None:
    return run.training(job.stage).last


def progress_lines(grid: ProgressGrid) -> list[str]:
    """Return the grid as text: one line for each job, ``point stage: state``, then the summary."""
    return [*(_line(status) for status in grid.cells.values()), grid.summary()]


def changed_lines(before: ProgressGrid | None, now: ProgressGrid) -> list[str]:
    """Return a line for each change between two polls of a sweep, for an output that is not a terminal.

    :param before: the previous grid, or None at the first poll.
    :param now: the current grid.
    :returns: one line for each job whose state or progress changed, in the plan's order; at the first poll one line
        for each job that is not waiting.
    """
    lines = []
    for key, status in now.cells.items():
        if before is None:
            changed = status.state is not StageState.WAITING
        else:
            earlier = before.cells.get(key)
            changed = earlier is None or earlier.text != status.text
        if changed:
            lines.append(_line(status))
    return lines


def _line(status: StageStatus) -> str:
    reason = f": {status.reason}" if status.reason else ""
    return f"{status.point} {status.stage}: {status.text}{reason}"
