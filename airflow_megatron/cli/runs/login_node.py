"""Connection to a login node for interactive commands."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.cli.local.local_connection import CONNECTION_ID
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.documents.configuration import airflow_home
from airflow_megatron.spec.documents.shipped_files import checkout
from airflow_megatron.supervision.attempts import slurm_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_megatron.hooks.slurm import SlurmHook
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

ANSWER_WINDOW_S: Final = 15.0
"""Time limit for reconnecting to a login node, in seconds; shorter than a task's, because a user waits."""
_SILENCE_S: Final = 4.0


class NoConnectionError(TransportError):
    """Airflow has no connection of the id that a cluster's profile names.

    :param what: what is missing
    :param fix: how to add it
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix}")
        self.what = what
        self.fix = fix


def command_line_hook(cluster: ClusterProfile, connects: int = 2) -> SlurmHook:
    """Return a hook for use outside Airflow tasks.

    :param connects: number of attempts to connect
    :raises NoConnectionError: if Airflow has no such connection
    """
    with redirect_stdout(sys.stderr):  # Airflow prints a warning if it cannot write to its folder of logs
        from airflow.models.connection import Connection
        from airflow.sdk.exceptions import AirflowException

    from airflow_megatron.cli.console.verbosity import log_to_standard_error
    from airflow_megatron.hooks.slurm import SlurmHook

    log_to_standard_error()
    try:
        connection: Any = Connection.get_connection_from_secrets(cluster.ssh_conn_id)
    except AirflowException as error:
        raise NoConnectionError(
            f"Airflow has no connection {cluster.ssh_conn_id!r} for cluster {cluster.name} ({error}); AIRFLOW_HOME is "
            f"{airflow_home()}",
            f"Start the local cluster and its Airflow once: {_started_by()}"
            if cluster.ssh_conn_id == CONNECTION_ID
            else f"Add it: airflow connections add {cluster.ssh_conn_id} --conn-type ssh --conn-host LOGIN_NODE "
            "--conn-login USER",
        ) from error
    return SlurmHook(
        cluster.ssh_conn_id, slurm_commands(cluster), conn_retry_attempts=connects, connection=connection
    )


def _started_by() -> str:
    if checkout() is not None:
        return "make ui, or make quickstart"
    return "airflow-megatron init DIR --local-cluster, or airflow-megatron ui"


@contextmanager
def login_node(cluster: ClusterProfile) -> Iterator[Callable[[str], CommandResult]]:
    """Yield a function that runs scripts on a login node over one connection, and reports a slow answer once.

    Scripts must be idempotent, because they may run twice.

    :raises NoConnectionError: if Airflow has no such connection
    """
    is_reported = threading.Event()

    def report() -> None:
        if not is_reported.is_set():
            is_reported.set()
            print(
                f"the login node of {cluster.name} has not answered for {_SILENCE_S:.0f} s; waiting",
                file=sys.stderr,
                flush=True,
            )

    with command_line_hook(cluster, connects=1).session() as run:

        def reported(script: str) -> CommandResult:
            timer = threading.Timer(_SILENCE_S, report)
            timer.daemon = True
            timer.start()
            try:
                return run(script)
            finally:
                timer.cancel()

        yield reported
