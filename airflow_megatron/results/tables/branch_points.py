"""Branch points: check that the log of each branch continues its trunk, and compute the savings of shared trunks.

A training that continues a checkpoint from outside the sweep is a branch whose trunk has no log: only the checkpoint
and the first iteration are checked.

A branch continues its trunk if it loaded the planned checkpoint, continues the counts of iterations and samples, and
starts at the learning rate of its own schedule, which equals the trunk's rate at the checkpoint. Iterations that the
loss scaler skips do not advance a schedule.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.schedule import STYLES, Schedule
from airflow_megatron.megatron.arguments.tables import argument_table
from airflow_megatron.megatron.arguments.values import ArgumentValues
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.megatron.logs.log_lines import IterationRecord
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.tables.trainings import Branch, ResultTable

_SAME_RATE = 1e-3
"""Logged learning rates have seven digits; rates that differ by this part of the peak are not the same."""
_JUMP = 0.02
"""A change of the learning rate by this part of its peak, from the trunk to the schedule of the branch, is a jump."""

_HEADINGS: Final = (
    "point",
    "branch",
    "from",
    "checkpoint",
    "first iteration",
    "trunk's rate",
    "first rate",
    "schedule's",
    "continues",
)


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """The point at which a branch leaves its trunk. Unknown values are None.

    :param point: name of the point
    :param branch: name of the branch
    :param parent_branch: the branch that it leaves, or the directory of a checkpoint from outside the sweep
    :param checkpoint: iteration of the checkpoint that it loaded
    :param first_iteration: the first iteration that it logged
    :param trunk_rate: the trunk's learning rate at the checkpoint
    :param first_rate: the branch's learning rate at its first iteration
    :param expected_rate: learning rate of its schedule there
    :param problems: differences from the planned continuation; empty if there are none
    """

    point: str
    branch: str
    parent_branch: str
    checkpoint: int | None
    first_iteration: int
    trunk_rate: float | None
    first_rate: float | None
    expected_rate: float | None
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "problems": list(self.problems)}


def branch_points(table: ResultTable) -> list[BranchPoint]:
    """Check the branches that have logged an iteration, except those with ``finetune``, which start at iteration 0."""
    return [
        _branch_point(table, branch, trunk, first)
        for branch in table.branches
        if ((trunk := table.parent_of(branch)) is not None or branch.job.source is not None)
        and (first := branch.training.first) is not None
        and not branch.job.params.get("finetune")
    ]


def display_table(points: Sequence[BranchPoint]) -> list[list[str]]:
    """Return the branches as readable cells, the headings first."""
    rows = [
        [
            point.point,
            point.branch,
            point.parent_branch,
            _shown(point.checkpoint, "d"),
            str(point.first_iteration),
            *(_shown(rate, ".4g") for rate in (point.trunk_rate, point.first_rate, point.expected_rate)),
            "; ".join(point.problems) or "yes",
        ]
        for point in points
    ]
    return [list(_HEADINGS), *rows]


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _branch_point(
    table: ResultTable, branch: Branch, trunk: Branch | None, first: IterationRecord
) -> BranchPoint:
    loaded = branch.training.loaded
    if trunk is None:  # its skipped iterations are unknown, and so the learning rate that its schedule has
        problems = tuple(_problems(branch.job, loaded, first, None, _Rates(None, None, 0)))
        return BranchPoint(
            *(branch.row.point, branch.row.branch, branch.job.source or "", loaded, first.iteration),
            *(None, first.learning_rate, None, problems),
        )
    at = loaded if loaded is not None else branch.job.start_iteration
    before = next((record for record in trunk.training.iterations if record.iteration == at), None)
    schedule = _schedule(branch.job)
    skipped = _skipped_iterations(table, trunk, at) if at is not None else 0
    advanced = first.iteration - skipped - (first.skipped_iterations or 0)
    expected = schedule.learning_rate(advanced) if schedule else None
    return BranchPoint(
        point=branch.row.point,
        branch=branch.row.branch,
        parent_branch=trunk.row.branch,
        checkpoint=loaded,
        first_iteration=first.iteration,
        trunk_rate=before.learning_rate if before else None,
        first_rate=first.learning_rate,
        expected_rate=expected,
        problems=tuple(_problems(branch.job, loaded, first, before, _Rates(schedule, expected, skipped))),
    )


def _skipped_iterations(table: ResultTable, trunk: Branch, until: int) -> int:
    """Return how many iterations were skipped up to a checkpoint of a trunk, those of its own trunks included."""
    count, ancestor, last = 0, trunk, until
    while True:
        lines = zip(ancestor.training.iterations, ancestor.training.skipped, strict=True)
        count += sum(skipped for record, skipped in lines if record.iteration <= last)
        earlier, loaded = table.parent_of(ancestor), ancestor.training.loaded
        if earlier is None or loaded is None or ancestor.job.params.get("finetune"):
            return count
        ancestor, last = earlier, loaded


@dataclass(frozen=True, slots=True)
class _Rates:
    """The learning rates that a branch should have.

    :param schedule: its schedule
    :param expected: the rate at its first iteration
    :param skipped: iterations of its trunk that were skipped before
    """

    schedule: Schedule | None
    expected: float | None
    skipped: int


def _schedule(job: SweepJob) -> Schedule | None:
    if job.release is None:
        return None
    arguments = ArgumentValues(argument_table(job.release), job.params)
    schedule = Schedule.of(arguments)
    if (
        schedule is None
        or schedule.lr is None
        or schedule.unit != "iters"
        or schedule.lr_decay_style not in STYLES
    ):
        return None
    # with the checkpoint's schedule, that of the command line has no effect
    other = ("lr_constant_plus_cooldown", "use_checkpoint_opt_param_scheduler")
    return None if any(arguments.value(name) for name in other) else schedule


def _problems(
    job: SweepJob,
    loaded: int | None,
    first: IterationRecord,
    before: IterationRecord | None,
    rates: _Rates,
) -> Iterator[str]:
    planned = job.start_iteration
    if loaded is None:
        yield f"started from scratch, at iteration {first.iteration}, without a checkpoint"
        return
    if planned is not None and loaded != planned:
        yield f"loaded checkpoint {loaded} instead of {planned}"
    if first.iteration <= loaded:
        yield f"continues at iteration {first.iteration} after checkpoint {loaded}"
    elif before and first.global_batch_size:
        samples = before.consumed_samples + (first.iteration - loaded) * first.global_batch_size
        if first.consumed_samples != samples:
            yield f"has consumed {first.consumed_samples} samples at iteration {first.iteration} instead of {samples}"
    schedule, expected = rates.schedule, rates.expected
    if schedule is None or expected is None or not schedule.lr or first.learning_rate is None:
        return
    if abs(first.learning_rate - expected) > _SAME_RATE * schedule.lr:
        yield (
            f"the learning rate at iteration {first.iteration} is {first.learning_rate:.4g}, where its schedule has"
            f" {expected:.4g}"
        )
    elif before and before.learning_rate is not None:
        begins = schedule.learning_rate(loaded - rates.skipped)
        if abs(before.learning_rate - begins) > _JUMP * schedule.lr:
            yield f"the learning rate jumps from {before.learning_rate:.4g} to {begins:.4g} at iteration {loaded}"


@dataclass(frozen=True, slots=True)
class SharedCompute:
    """The compute of the trainings of a sweep, with and without sharing trunks.

    :param branches: number of branches with their own result
    :param trained: trained iterations, each counted once
    :param separate: iterations of the same number of trainings from the beginning
    :param gpu_hours_saved: the difference in hours of training processes, one per GPU if there are GPUs;
        None if step times are unknown
    :param trunks: number of trunks that continued beyond their last branch, to their own result
    :param gpus: whether the processes have GPUs
    """

    branches: int
    trained: int
    separate: int
    gpu_hours_saved: float | None
    trunks: int = 0
    gpus: bool = True

    @property
    def text(self) -> str:
        """Return a readable summary."""
        what = counted(self.branches, "branch", "branches")
        if self.trunks:
            what += (
                f" and {self.trunks} {'trunk' if self.trunks == 1 else 'trunks'} that continued beyond them"
            )
        unit = "GPU-hours" if self.gpus else "hours of processes without GPUs"
        hours = "" if self.gpu_hours_saved is None else f", {self.gpu_hours_saved:.3g} {unit}"
        return (
            f"{what}: {self.trained:,} iterations trained, trunks included; {self.separate:,} if each had been trained"
            f" from its beginning. Saved: {1 - self.trained / self.separate:.0%}{hours}."
        )


def shared_compute(table: ResultTable, points: Sequence[BranchPoint]) -> SharedCompute | None:
    """Return the compute that the branches share.

    A trunk that continued beyond its last branch also counts as a result; one that ended there does not.

    :param table: the trainings of a sweep.
    :param points: their branches.
    :returns: None without branches, or if no branch has logged an iteration after its checkpoint.
    """
    inside = {(branch.row.point, branch.row.branch) for branch in table.branches}
    points = [point for point in points if (point.point, point.parent_branch) in inside]
    starts = {
        (point.point, point.branch): point.checkpoint for point in points if point.checkpoint is not None
    }
    trunks = {(point.point, point.parent_branch) for point in points if (point.point, point.branch) in starts}
    if not trunks:
        return None
    last_branch = dict.fromkeys(trunks, 0)
    for point in points:
        if point.checkpoint is not None:
            trunk = (point.point, point.parent_branch)
            last_branch[trunk] = max(last_branch[trunk], point.checkpoint)
    trained = separate = branches = continued = 0
    seconds: float | None = 0.0
    for branch in table.branches:
        key = (branch.row.point, branch.row.branch)
        end = branch.row.iteration
        if end is None or (key not in starts and key not in trunks):
            continue
        own = end - starts.get(key, 0)
        trained += own
        if key in trunks and end <= last_branch[key]:
            seconds = _plus(seconds, branch, -own)
            continue
        branches += key not in trunks
        continued += key in trunks
        separate += own
        ancestor, last = table.parent_of(branch), starts.get(key)
        while ancestor is not None and last is not None:
            begin = starts.get((ancestor.row.point, ancestor.row.branch), 0)
            separate += last - begin
            seconds = _plus(seconds, ancestor, last - begin)
            ancestor, last = table.parent_of(ancestor), begin
    return SharedCompute(
        branches,
        trained,
        separate,
        seconds / 3600 if seconds is not None else None,
        trunks=continued,
        gpus=any(branch.job.gpus for branch in table.branches),
    )


def _plus(seconds: float | None, branch: Branch, iterations: int) -> float | None:
    """Add the GPU-seconds of some iterations of a branch, at its median step time."""
    steps = [record.elapsed_ms for record in branch.training.iterations[1:] if record.elapsed_ms]
    if seconds is None or not steps:
        return None
    return seconds + iterations * statistics.median(steps) / 1000 * branch.job.processes


def branches_json(points: Sequence[BranchPoint], shared: SharedCompute | None) -> str:
    """Return branches and their savings as a JSON object: ``branches`` and ``shared``."""
    content = {
        "branches": [point.to_json() for point in points],
        "shared": asdict(shared) if shared is not None else None,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
