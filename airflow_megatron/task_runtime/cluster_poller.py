"""The poller that all triggers of a process share for one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.polling.poller import Poller
from airflow_megatron.slurm.remote.profile import SlurmCommands

if TYPE_CHECKING:
    from collections.abc import Mapping


def trigger_hook(ssh_conn_id: str, commands: Mapping[str, Any]) -> SlurmHook:
    """Return the hook for the serialized arguments of a trigger."""
    return SlurmHook(ssh_conn_id, SlurmCommands.from_json(commands))


def shared_poller(ssh_conn_id: str, commands: Mapping[str, Any], interval: float) -> Poller:
    """Return the poller of a cluster; the first call creates it."""
    hook = trigger_hook(ssh_conn_id, commands)
    return Poller.shared(
        (ssh_conn_id, hook.commands), hook.transport, interval=interval, commands=hook.commands
    )
