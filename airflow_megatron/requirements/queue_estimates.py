"""Size of a sweep: GPU-hours, and jobs in the queue at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.quantities import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import BillingSection
    from airflow_megatron.spec.model.stage_tree import StageInstance
    from airflow_megatron.spec.model.sweep import SweepSettings


@dataclass(frozen=True)
class GpuHours:
    """An upper bound of the GPU-hours of jobs.

    :param hours: walltime × GPUs of the jobs with a walltime, one attempt each
    :param unbounded: jobs with GPUs but without a walltime, which are not in ``hours``
    :param own_scripts: jobs whose own scripts request the resources, which are not in ``hours``
    """

    hours: float = 0.0
    unbounded: int = 0
    own_scripts: int = 0

    def __add__(self, other: GpuHours) -> GpuHours:
        return GpuHours(
            self.hours + other.hours,
            self.unbounded + other.unbounded,
            self.own_scripts + other.own_scripts,
        )

    def __str__(self) -> str:
        text = (
            f"{self.hours:,.0f}"
            if self.hours >= 100 or self.hours == int(self.hours)
            else f"{self.hours:.1f}"
        )
        return f"{text} + ?" if self.unbounded else text


def gpu_hours(jobs: Iterable[Job]) -> GpuHours:
    """Return the maximum GPU-hours of jobs, with one attempt each."""
    hours, unbounded, own_scripts = 0.0, 0, 0
    for job in jobs:
        if job.script is not None:
            own_scripts += 1
        elif gpus := job.slurm.node_count * job.slurm.gpus:
            seconds = job.slurm.time
            if seconds is None:
                unbounded += 1
            else:
                hours += gpus * seconds / 3600
    return GpuHours(hours, unbounded, own_scripts)


def site_cost(jobs: Iterable[Job], billing: BillingSection) -> GpuHours:
    """Return the maximum cost of jobs in units of the site (``hours``), with one attempt each."""
    total = GpuHours()
    least = 0 if billing.min_time is None else parse_duration(billing.min_time)
    for job in jobs:
        # of several partitions, Slurm may choose the most expensive one
        rates = [
            billing.per_node_hour.get(partition, billing.per_gpu_hour * job.slurm.gpus)
            for partition in (job.slurm.partition or "").split(",")
        ]
        rate, seconds = job.slurm.node_count * max(rates), job.slurm.time
        if rate:
            total += GpuHours(unbounded=1) if seconds is None else GpuHours(rate * max(seconds, least) / 3600)
    return total


def longest_time(chain: int, points: int, settings: SweepSettings) -> int:
    """Return the seconds that a sweep's jobs run one after another: points in turns, one attempt each at its walltime.

    :param chain: the longest time of the jobs of one point (:func:`longest_chain`)
    :param points: the number of points
    """
    return chain * -(-points // max(min(points, settings.max_active_points), 1))


def longest_chain(jobs: Sequence[Job]) -> int:
    """Return the longest time in seconds that jobs run that wait for each other, one attempt each at its walltime.

    :param jobs: those without a walltime do not count
    """
    by_name = {job.name: job for job in jobs}
    ends: dict[str, int] = {}
    for job in jobs:
        # not by recursion: chains of stages may be long
        waiting = [job.name]
        while waiting:
            name = waiting[-1]
            before = [one.job for one in by_name[name].depends_on if one.job in by_name]
            if unknown := [one for one in before if one not in ends and one not in waiting]:
                waiting += unknown
                continue
            start = max((ends.get(one, 0) for one in before), default=0)
            ends[name] = start + (by_name[name].slurm.time or 0)
            waiting.pop()
    return max(ends.values(), default=0)


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
