"""The user's jobs in Slurm's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.states.observation import QueueRow, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_megatron.slurm.remote.profile import SlurmCommands
    from airflow_megatron.slurm.remote.transport import CommandResult


def fetch_queue(
    commands: SlurmCommands, run: Callable[[str], CommandResult]
) -> Mapping[str, QueueRow] | None:
    """Return squeue's row of each job in the queue, by its id; None if squeue fails.

    Jobs that have ended stay in the queue for some minutes (``MinJobAge``).

    :param run: runs a script on the login node
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    """
    watch = Watch("queue", whole_queue=True)
    seen = parse_poll([watch], run(poll_script([watch], commands)))[watch.key]
    return seen.user_jobs if seen.queue_ok else None
