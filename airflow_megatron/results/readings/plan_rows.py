"""Convert a job of a plan to a row, for the output of ``plan`` and for the result tables."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_megatron.results.readings.sweep_jobs import SWEEP_WIDE, SweepJob, read_jobs

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from airflow_megatron.spec.model.jobs import Job


def sweep_jobs(jobs: Iterable[Job], *, several: bool = False) -> tuple[SweepJob, ...]:
    """Return the jobs of a plan for the result tables, in the given order.

    :param several: as for :func:`plan_rows`
    """
    return read_jobs(plan_rows(jobs, several=several))


def plan_rows(jobs: Iterable[Job], *, several: bool = False) -> list[dict[str, Any]]:
    """Return jobs as rows.

    :param several: whether the spec names several clusters. The names of jobs that run once on each cluster then
        include the cluster's name, even while only one cluster is in use, so that their rows in the store keep their
        names when a second cluster comes into use
    """
    if not several:
        return [plan_row(job) for job in jobs]
    jobs = list(jobs)
    shared = {job.name for job in jobs if not job.point}
    return [_on_its_cluster(job, shared) for job in jobs]


def _on_its_cluster(job: Job, shared: Container[str]) -> dict[str, Any]:
    row = plan_row(job)
    for dependency in row["depends_on"]:
        if dependency["job"] in shared:
            dependency["job"] += f"@{job.cluster}"
    if not job.point:
        row |= {"name": f"{job.name}@{job.cluster}", "point": f"{SWEEP_WIDE}@{job.cluster}"}
    return row


def plan_row(job: Job) -> dict[str, Any]:
    """Return a job as the plan and the result tables show it."""
    params = job.params
    return {
        "name": job.name,
        "point": job.point,
        "stage": job.stage,
        "kind": job.kind,
        "branch": job.branch,
        "params": dict(params),
        "sweep_params": {name: params[name] for name in job.swept if name in params},
        "depends_on": [dependency.to_plan() for dependency in job.depends_on],
        "run_dir": job.run_dir,
        "command": list(job.command),
        "release": job.release,
        **({"iteration": job.iteration} if job.iteration is not None else {}),
        **({"source": dataclasses.asdict(job.source)} if job.source else {}),
        **({"expect": job.expect} if job.expect else {}),
        **({"measure": dict(job.measure)} if job.measure else {}),
        **({} if job.slurm.gpus_per_node else {"gpus": False}),
    }
