"""Find the job that writes each file of a condition: files of an earlier run of that job do not count.

A fresh start or a cleared task keeps the files of the previous run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job


def with_file_owners(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of a point with the producer of each file in their conditions, if it is known.

    This is the job whose run directory contains the file. If several jobs share one, it is the training (or the first
    stage) of that directory. Files in a job's ``finish`` are produced by the job itself. Other files have no producer.
    """
    if not any(_files(condition) for job in jobs for condition in _conditions(job)):
        return list(jobs)
    owners: dict[str, Job] = {}
    for job in jobs:
        if job.run_dir not in owners or job.branch == job.stage:
            owners[job.run_dir] = job
    return [_with_owners(job, owners) for job in jobs]


def _with_owners(job: Job, owners: dict[str, Job]) -> Job:
    def owned(condition: Condition | None, own: Job | None = None) -> Condition | None:
        if condition is None or not _files(condition):
            return condition
        parts = tuple(part for item in condition.parts if (part := owned(item, own)) is not None)
        if condition.kind != "file":
            return msgspec.structs.replace(condition, parts=parts)
        owner = _owner(condition.path, owners)
        if owner is not None and own is not None and owner.run_dir == own.run_dir:
            owner = own
        return msgspec.structs.replace(condition, producer=owner.stage_dir if owner else "")

    return msgspec.structs.replace(
        job,
        start=owned(job.start),
        cancel=owned(job.cancel),
        finish=owned(job.finish, job),
        events=tuple(
            msgspec.structs.replace(event, condition=owned(event.condition)) for event in job.events
        ),
    )


def _conditions(job: Job) -> list[Condition | None]:
    return [job.start, job.cancel, job.finish, *(event.condition for event in job.events)]


def _files(condition: Condition | None) -> bool:
    return condition is not None and any(leaf.kind == "file" for leaf in condition.leaves())


def _owner(path: str, owners: dict[str, Job]) -> Job | None:
    """Return the owner of the innermost run directory that contains a path or pattern."""
    folder = path
    while "/" in folder.rstrip("/"):
        folder = folder.rpartition("/")[0]
        if folder in owners:
            return owners[folder]
    return None
