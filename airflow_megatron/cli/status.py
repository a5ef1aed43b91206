"""``airflow-megatron status``: how far a sweep is, read from its cluster."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from airflow_megatron.planning.attempts import slurm_commands
from airflow_megatron.planning.plan import Plan, plan_row
from airflow_megatron.planning.results import fetch_snapshot
from airflow_megatron.results.progress import ProgressGrid, progress_grid, progress_lines, progress_table
from airflow_megatron.results.sweep_jobs import read_jobs
from airflow_megatron.slurm.transport import TransportError
from airflow_megatron.spec.cluster_profile import load_cluster

if TYPE_CHECKING:
    from airflow_megatron.hooks.slurm import SlurmHook
    from airflow_megatron.spec.cluster_profile import ClusterProfile

STATUS_LOG_BYTES = 256 * 1024


def sweep_progress(plan: Plan) -> ProgressGrid:
    """Return the state of every job of a plan, read with one remote command.

    :raises TransportError: when the login node does not answer
    """
    cluster = load_cluster(plan.cluster)
    hook = command_line_hook(cluster)
    snapshot = fetch_snapshot(plan.jobs, hook.run, log_tail_bytes=STATUS_LOG_BYTES)
    return progress_grid(snapshot, read_jobs(plan_row(job) for job in plan.jobs))


def command_line_hook(cluster: ClusterProfile) -> SlurmHook:
    """Return a hook for use outside of Airflow's tasks.

    :raises TransportError: when Airflow has no such connection
    """
    from airflow.models.connection import Connection
    from airflow.sdk.exceptions import AirflowException

    from airflow_megatron.hooks.slurm import SlurmHook

    try:
        connection: Any = Connection.get_connection_from_secrets(cluster.ssh_conn_id)
    except AirflowException as error:
        raise TransportError(
            f"Airflow has no connection {cluster.ssh_conn_id!r} for cluster {cluster.name} ({error}); AIRFLOW_HOME is "
            f"{os.environ.get('AIRFLOW_HOME')}"
        ) from error
    return SlurmHook(
        cluster.ssh_conn_id, slurm_commands(cluster), conn_retry_attempts=2, connection=connection
    )


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
