"""Fetching a sweep's results from its cluster and writing the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.planning.plan import Plan, plan_row
from airflow_megatron.results.report import Report, write_report
from airflow_megatron.results.snapshot import SweepSnapshot, parse_snapshot, snapshot_script
from airflow_megatron.results.sweep_jobs import read_jobs, run_directories
from airflow_megatron.spec.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from airflow_megatron.slurm.transport import CommandResult
    from airflow_megatron.spec.jobs import Job


def results_dir(sweep: str) -> Path:
    """Return the folder that a sweep's tables and plots are written to."""
    return local_dir() / "results" / sweep


def fetch_snapshot(
    jobs: Sequence[Job], run: Callable[[str], CommandResult], *, log_tail_bytes: int | None = None
) -> SweepSnapshot:
    """Read the run directories of the jobs with one remote command.

    :param run: runs a script on the login node
    :param log_tail_bytes: look at the last bytes of each log only; None for whole logs
    :raises airflow_megatron.slurm.transport.TransportError: when the login node does not answer
    :raises airflow_megatron.results.snapshot.SnapshotError: when the answer is cut off
    """
    directories = run_directories(read_jobs(plan_row(job) for job in jobs))
    return parse_snapshot(run(snapshot_script(directories, log_tail_bytes=log_tail_bytes)).stdout)


def write_results(plan: Plan, run: Callable[[str], CommandResult]) -> Report:
    """Fetch the results of a plan's jobs and write tables and plots."""
    snapshot = fetch_snapshot(plan.jobs, run)
    return write_report(
        snapshot, [plan_row(job) for job in plan.jobs], results_dir(plan.sweep), title=plan.sweep
    )
