"""Size of a sweep: GPU-hours, and jobs in the queue at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.stage_tree import StageInstance
    from airflow_megatron.spec.model.sweep import SweepSettings


@dataclass(frozen=True)
class GpuHours:
    """An upper bound of the GPU-hours of jobs.

    :param hours: walltime × GPUs of the jobs with a walltime, one attempt each
    :param unbounded: jobs with GPUs but without a walltime, which are not in ``hours``
    """

    hours: float = 0.0
    unbounded: int = 0

    def __add__(self, other: GpuHours) -> GpuHours:
        return GpuHours(self.hours + other.hours, self.unbounded + other.unbounded)

    def __str__(self) -> str:
        text = (
            f"{self.hours:,.0f}"
            if self.hours >= 100 or self.hours == int(self.hours)
            else f"{self.hours:.1f}"
        )
        return f"{text} + ?" if self.unbounded else text


def gpu_hours(jobs: Iterable[Job]) -> GpuHours:
    """Return the maximum GPU-hours of jobs, with one attempt each."""
    total = GpuHours()
    for job in jobs:
        gpus = job.slurm.node_count * job.slurm.gpus
        if not gpus:
            continue
        seconds = job.slurm.time
        total += GpuHours(unbounded=1) if seconds is None else GpuHours(gpus * seconds / 3600)
    return total


def most_jobs_at_once(tree: Sequence[StageInstance], points: int, settings: SweepSettings) -> int:
    """Return the maximum number of jobs of a sweep in the queue at the same time."""
    children: dict[str | None, list[StageInstance]] = {}
    for instance in tree:
        if instance.scope == "point":
            children.setdefault(instance.parent, []).append(instance)
    shared = {instance.name: instance for instance in tree if instance.scope == "sweep"}
    roots = [instance for parent in (None, *shared) for instance in children.get(parent, ())]
    per_point = sum(_width(instance, children) for instance in roots)
    active = min(points, settings.max_active_points)
    # array tasks are in the queue before their points start
    most = active * per_point + (points - active) * sum(instance.array for instance in roots)
    return max(most, len(shared))


def _width(instance: StageInstance, children: Mapping[str | None, Sequence[StageInstance]]) -> int:
    """Return the maximum number of jobs of a subtree in the queue; a job never overlaps jobs that wait for its end."""
    below = children.get(instance.name, ())
    after = sum(_width(child, children) for child in below if child.waits == "parent")
    beside = sum(_width(child, children) for child in below if child.waits != "parent")
    return max(1, after) + beside
