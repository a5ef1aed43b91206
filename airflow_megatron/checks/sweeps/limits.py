"""Check that a sweep respects the limits of its cluster profile, and of what Airflow can store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.requirements.queue_estimates import most_jobs_at_once
from airflow_megatron.slurm.submission.sbatch_options import read_options, split_directive
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.quantities import counted, parse_duration, slurm_time
from airflow_megatron.spec.model.schema import SweepSpecSection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_megatron.requirements.queue_estimates import GpuHours
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import LimitsSection, PartitionSection
    from airflow_megatron.spec.model.sweep import Sweep


DEFAULT_POLL_INTERVAL_S: Final = float(SweepSpecSection.model_fields["poll_interval"].default)


def limit_findings(jobs: Sequence[Job], cluster: ClusterProfile) -> Iterator[Finding]:
    """Yield the jobs that request more than their cluster or partition allows."""
    for job in jobs:
        yield from _beyond(job, cluster.limits, f"cluster {cluster.name}")
        least = cluster.limits.min_nodes
        if least is not None and job.slurm.node_count < least:
            yield Finding(
                "min_nodes",
                job,
                ("slurm", "nodes"),
                f"requests {counted(job.slurm.node_count, 'node')}; cluster {cluster.name} accepts "
                f"jobs of {counted(least, 'node')} or more",
                f"request at least {counted(least, 'node')}",
            )
        # Slurm uses the first of several partitions that can start the job
        for name in (job.slurm.partition or "").split(","):
            if name in cluster.partitions:
                yield from _beyond(job, cluster.partitions[name], f"partition {name}")
                yield from _beyond_node(job, cluster.partitions[name], name)
            elif name and cluster.partitions:
                yield Finding(
                    "partition",
                    job,
                    ("slurm", "partition"),
                    f"cluster {cluster.name} has no partition {name!r}",
                    did_you_mean(name, cluster.partitions)
                    or f"known: {', '.join(cluster.partitions)}; or describe it in its profile",
                )


_ALWAYS_FINITE: Final = frozenset((str, int, bool, type(None)))


def number_findings(jobs: Sequence[Job]) -> Iterator[Finding]:
    """Yield the values of jobs that no XCom can hold: Airflow refuses infinite numbers and NaN."""
    for job in jobs:
        changes = job.restart.after_rollback
        if not changes and not _not_finite(job.params.values()):
            continue
        given: list[tuple[tuple[str, ...], Any]] = [((name,), value) for name, value in job.params.items()]
        given += [(("restart", "after_rollback", name), value) for name, value in changes.items()]
        for keys, value in given:
            if _not_finite((value,)):
                yield Finding(
                    f"number {keys[-1]}",
                    job,
                    keys,
                    f"{keys[-1]} is {value}, and Airflow stores no infinite numbers and no NaN",
                    "write a finite number, or text in quotes: 'inf'",
                )


def _not_finite(values: Iterable[Any]) -> list[Any]:
    """Return the infinite numbers and NaN; nearly all values of a large sweep need only the look at their type."""
    return [value for value in values if type(value) not in _ALWAYS_FINITE and not _is_finite(value)]


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _beyond(job: Job, limits: LimitsSection | PartitionSection, giver: str) -> Iterator[Finding]:
    """Yield the resources of a job that exceed the limits of a cluster or a partition for one job."""
    nodes = job.slurm.node_count
    if limits.max_nodes is not None and nodes > limits.max_nodes:
        yield Finding(
            "nodes",
            job,
            ("slurm", "nodes"),
            f"requests {counted(nodes, 'node')}; {giver} allows {limits.max_nodes} per job",
            f"request at most {counted(limits.max_nodes, 'node')}",
        )
    seconds = job.slurm.time
    longest = None if limits.max_time is None else parse_duration(limits.max_time)
    if longest is not None and seconds is not None and seconds > longest:
        yield Finding(
            "time",
            job,
            ("slurm", "time"),
            f"requests {slurm_time(seconds)}; {giver} allows {slurm_time(longest)} per attempt",
            f'time: "{slurm_time(longest)}"; a longer training continues in further attempts',
        )


def _beyond_node(job: Job, partition: PartitionSection, name: str) -> Iterator[Finding]:
    """Yield the resources of a job that exceed a node of the partition."""
    gpus = job.slurm.gpus
    if partition.gpus_per_node is not None and gpus > partition.gpus_per_node:
        yield Finding(
            "gpus_per_node",
            job,
            ("slurm", "gpus_per_node"),
            f"partition {name} has {counted(partition.gpus_per_node, 'GPU')} per node, {gpus} requested",
            f"gpus_per_node of at most {partition.gpus_per_node}, on more nodes, or another partition",
        )
    processes = max(gpus, 1) if job.runs_trainer else 1
    cores = processes * (1 if job.slurm.cpus_per_task is None else job.slurm.cpus_per_task)
    if partition.cpus_per_node is None:
        return
    reserved = _reserved_cores(job, partition)
    available = partition.cpus_per_node - reserved
    if cores > available:
        details = f", of which Slurm reserves {reserved}" if reserved else ""
        yield Finding(
            "cpus_per_task",
            job,
            ("slurm", "cpus_per_task"),
            f"partition {name} has {partition.cpus_per_node} CPU cores per node{details}, {cores} requested",
            f"cpus_per_task of at most {available // processes}",
        )


def _reserved_cores(job: Job, partition: PartitionSection) -> int:
    """Return the cores of a node that the job does not get."""
    words = [word for option in job.slurm.options for word in split_directive(option)]
    given = [option.value or "" for option in read_options(words) if option.meant == ("core-spec",)]
    return int(given[-1]) if given and given[-1].isdecimal() else partition.core_spec


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers as text, rounded to as few digits as tell them apart and leave neither 0."""
    for digits in range(4):
        texts = f"{one:,.{digits}f}", f"{other:,.{digits}f}"
        if texts[0] != texts[1] and all(float(text.replace(",", "")) for text in texts):
            return texts
    return f"{one:g}", f"{other:g}"


def budget_problems(
    sweep: Sweep, total: GpuHours, jobs: int, points: int, cluster: ClusterProfile
) -> tuple[list[Problem], list[Problem]]:
    """Return errors and warnings about the total resources of the sweep.

    :param total: of all jobs
    :param jobs: their number
    :param points: the number of points that they belong to
    """
    errors: list[Problem] = []
    warnings: list[Problem] = []
    limits = cluster.limits
    least, asked = cluster.min_poll_interval, sweep.settings.poll_interval
    if least is not None and asked < least and asked != DEFAULT_POLL_INTERVAL_S:
        message = (
            f"poll_interval is {asked:g}; cluster {cluster.name} is polled at most once every {least:g} s"
        )
        warnings.append(
            sweep.document.problem(("poll_interval",), message, f"write {least:g} or more, or remove it")
        )
    if limits.max_gpu_hours is not None:
        if total.hours > limits.max_gpu_hours:
            hours, most_hours = _told_apart(total.hours, limits.max_gpu_hours)
            message = (
                f"the sweep can take {hours} GPU-hours (walltime × GPUs of {counted(jobs, 'job')});"
                f" cluster {cluster.name} allows {most_hours}"
            )
            hint = "shorten slurm.time, run fewer points, or raise limits.max_gpu_hours in its profile"
            errors.append(sweep.document.problem(("slurm", "time"), message, hint))
        if total.unbounded:
            message = (
                f"{counted(total.unbounded, 'job with GPUs has', 'jobs with GPUs have')} no "
                "walltime, so their GPU-hours are unknown"
            )
            warnings.append(sweep.document.problem(("slurm",), message, "add slurm: {time: 6h}"))
        if total.own_scripts:
            message = (
                f"{counted(total.own_scripts, 'job requests', 'jobs request')} resources in "
                f"scripts of their own, so limits.max_gpu_hours of cluster {cluster.name} is not checked"
            )
            warnings.append(sweep.document.problem((), message))
    if limits.max_jobs is not None:
        most = most_jobs_at_once(sweep.tree, points, sweep.settings)
        most = min(most, sweep.settings.max_jobs or most)
        if most > limits.max_jobs:
            message = (
                f"up to {counted(most, 'job')} can be due at once; cluster {cluster.name} "
                f"accepts {limits.max_jobs}"
            )
            place = ("max_active_points",)
            active = max(min(points, sweep.settings.max_active_points) * limits.max_jobs // most, 1)
            hint = f"the others wait; max_active_points: {active} keeps points together"
            warnings.append(sweep.document.problem(place, message, hint))
    return errors, warnings
