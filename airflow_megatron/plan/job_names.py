"""Names of jobs on the command line: the job's name, or point and stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.spec.model.jobs import Job

_SHOWN = 3


def short_name(job: Job) -> str:
    """Return ``point.stage``, or the stage alone for a job of the whole sweep."""
    return f"{job.point}.{job.stage}" if job.point else job.stage


def job_called(jobs: Sequence[Job], name: str) -> Job:
    """Return the job with a name, or with a short name that no other job has.

    :param jobs: the jobs of a plan
    :raises KeyError: with the nearest names, or the points of a stage that several points have
    """
    for job in jobs:
        if job.name == name:
            return job
    alike = [job for job in jobs if short_name(job) == name]
    if len(alike) == 1:
        return alike[0]
    alike = alike or [job for job in jobs if job.stage == name]
    if alike:
        names = [job.name if short_name(job) == name else short_name(job) for job in alike[:_SHOWN]]
        more = " …" if len(alike) > _SHOWN else ""
        which = "name it" if len(alike) == 1 else "name one of them"
        raise KeyError(
            f"{name!r} is the stage of {counted(len(alike), 'job')}; {which}: {', '.join(names)}{more}"
        )
    known = [known for job in jobs for known in (short_name(job), job.name)]
    hint = did_you_mean(name, known) or "airflow-megatron plan SPEC --format names lists them"
    raise KeyError(f"no job {name!r}; {hint}")
