"""Rules for stages that may wait in Slurm's queue for the end of their parents (``ahead``).

The stages of a point form a tree. A stage can be queued behind its parent if a compute node can determine that the
parent has finished, and the stage waits for nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.commands.commands import leaves_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.model.jobs import Job


def tells_its_end(job: Job) -> bool:
    """Return whether a compute node can determine from a job's files, like Airflow, that the job has finished.

    It cannot if the job has conditions or events, which only Airflow checks, if it is a task of an array, or if it
    writes checkpoints of DeepSpeed, whose names do not show whether they are complete.
    """
    if job.cancel is not None or job.finish is not None or job.events or job.expect or job.array:
        return False
    if not ends_with_checkpoint(job):
        return True
    return job.last_iteration is not None and not job.trained_by.resumes_by_tag


def can_follow(job: Job, before: Job) -> bool:
    """Return whether a job may be queued behind another: it starts at that job's end, without other conditions."""
    if (
        not job.point
        or job.point != before.point
        or (job.cluster, job.profile) != (before.cluster, before.profile)
    ):
        return False
    if any(condition is not None for condition in (job.start, job.cancel, job.finish)):
        return False
    if job.array or job.shared_log is not None or not tells_its_end(before):
        return False
    return [(wanted.job, wanted.until) for wanted in job.depends_on] == [(before.name, "finished")]


def followers(job: Job, jobs: Sequence[Job], depth: int | None = None) -> Iterator[tuple[Job, Job]]:
    """Yield (job, previous job) for the jobs that may be queued behind a job, in order.

    :param jobs: jobs of its point
    :param depth: maximum depth in stages, limited by each stage's ``ahead``; None for all possible ones
    """
    if depth == 0:
        return
    for other in jobs:
        if can_follow(other, job):
            yield other, job
            yield from followers(other, jobs, None if depth is None else min(depth - 1, other.ahead))


def ends_with_checkpoint(job: Job) -> bool:
    """Return whether a job has finished when its last checkpoint exists (:class:`.verdict.Expectation`)."""
    return job.trains and leaves_checkpoints(job)
