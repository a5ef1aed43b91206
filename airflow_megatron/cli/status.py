"""``airflow-megatron status``: how far a sweep is, read from its cluster."""

from __future__ import annotations

import sys

from airflow_megatron.planning.attempts import slurm_commands
from airflow_megatron.planning.plan import Plan, plan_row
from airflow_megatron.planning.results import fetch_snapshot
from airflow_megatron.results.progress import ProgressGrid, progress_grid, progress_lines, progress_table
from airflow_megatron.results.sweep_jobs import read_jobs
from airflow_megatron.slurm.transport import TransportError
from airflow_megatron.spec.cluster_profile import load_cluster

STATUS_LOG_BYTES = 64 * 1024


def sweep_progress(plan: Plan) -> ProgressGrid:
    """Return the state of every job of a plan, read with one remote command.

    :raises TransportError: when the login node does not answer
    """
    from airflow_megatron.hooks.slurm import SlurmHook

    cluster = load_cluster(plan.cluster)
    hook = SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster), conn_retry_attempts=2)
    snapshot = fetch_snapshot(plan.jobs, hook.run, log_tail_bytes=STATUS_LOG_BYTES)
    return progress_grid(snapshot, read_jobs(plan_row(job) for job in plan.jobs))


def print_status(plan: Plan) -> None:
    """Print the grid of points and stages; as lines when the output is no terminal."""
    try:
        grid = sweep_progress(plan)
    except TransportError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(progress_table(grid, title=plan.sweep))
    else:
        print("\n".join(progress_lines(grid)))
