"""A job of a plan as a row, which the plan's output and the result tables are made from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_megatron.results.readings.sweep_jobs import SWEEP_WIDE, SweepJob, read_jobs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.spec.model.jobs import Job


def sweep_jobs(jobs: Iterable[Job]) -> tuple[SweepJob, ...]:
    """Return the jobs of a plan as the results of a sweep need them, in the order given."""
    return read_jobs(plan_rows(jobs))


def plan_rows(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Return jobs as the result tables show them: jobs that run once on each of several clusters name theirs."""
    jobs = list(jobs)
    several = len({job.cluster for job in jobs if not job.point}) > 1
    return [{**plan_row(job), **_on_its_cluster(job)} if several else plan_row(job) for job in jobs]


def _on_its_cluster(job: Job) -> dict[str, str]:
    return {} if job.point else {"name": f"{job.name}@{job.cluster}", "point": f"{SWEEP_WIDE}@{job.cluster}"}


def plan_row(job: Job) -> dict[str, Any]:
    """Return a job as the plan and the result tables show it."""
    return {
        "name": job.name,
        "point": job.point,
        "stage": job.stage,
        "kind": job.kind,
        "branch": job.branch,
        "params": dict(job.params),
        "sweep_params": {name: job.params[name] for name in job.swept if name in job.params},
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
