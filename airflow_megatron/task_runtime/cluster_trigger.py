"""Base of triggers that poll a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_megatron.task_runtime.cluster_poller import shared_poller
from airflow_megatron.task_runtime.deferring_trigger import DeferringTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.polling.poller import Poller


class ClusterTrigger(DeferringTrigger):
    """Wait for something on a cluster, until a deadline.

    :param ssh_conn_id: connection to the login node
    :param commands: keyword arguments of :class:`airflow_megatron.slurm.remote.profile.SlurmCommands`
    :param poll_interval: seconds between two polls of the cluster
    :param deadline: Unix time after which to stop waiting, or None
    :param base: as for :class:`~airflow_megatron.task_runtime.deferring_trigger.DeferringTrigger`
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str,
        commands: Mapping[str, Any],
        poll_interval: float = 15.0,
        deadline: float | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.ssh_conn_id = ssh_conn_id
        self.commands = dict(commands)
        self.poll_interval = poll_interval
        self.deadline = deadline

    @property
    def poller(self) -> Poller:
        """The cluster's poller."""
        return shared_poller(self.ssh_conn_id, self.commands, self.poll_interval)

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.time() > self.deadline
