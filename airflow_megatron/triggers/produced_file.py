"""What triggers that wait for a file of a job have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger

from airflow_megatron.triggers.cluster_poller import shared_poller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.observation import Observation
    from airflow_megatron.slurm.poller import Poller


class ProducedFileTrigger(BaseTrigger):
    """Wait for something that a job writes, or for that job to end without having written it.

    :param ssh_conn_id: connection to the login node
    :param commands: keyword arguments of :class:`airflow_megatron.slurm.profile.SlurmCommands`
    :param producer_dir: stage directory of the job that writes, or None
    :param producer_attempt: the attempt from which on that job's verdict counts
    :param poll_interval: seconds between two looks at the cluster
    :param deadline: Unix time after which to stop waiting, or None
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str,
        commands: Mapping[str, Any],
        producer_dir: str | None = None,
        producer_attempt: int = 1,
        poll_interval: float = 15.0,
        deadline: float | None = None,
    ) -> None:
        super().__init__()
        self.ssh_conn_id = ssh_conn_id
        self.commands = dict(commands)
        self.producer_dir = producer_dir
        self.producer_attempt = producer_attempt
        self.poll_interval = poll_interval
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and every argument."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "ssh_conn_id": self.ssh_conn_id,
                "commands": self.commands,
                "producer_dir": self.producer_dir,
                "producer_attempt": self.producer_attempt,
                "poll_interval": self.poll_interval,
                "deadline": self.deadline,
            },
        )

    @property
    def poller(self) -> Poller:
        """The cluster's poller."""
        return shared_poller(self.ssh_conn_id, self.commands, self.poll_interval)

    @property
    def verdict_files(self) -> tuple[str, ...]:
        """The file that tells how the producing job ended; to be read at each look."""
        return (f"{self.producer_dir}/verdict.json",) if self.producer_dir else ()

    def producer_verdict(self, observation: Observation) -> dict[str, Any] | None:
        """Return how the producing job ended, None while it goes on."""
        for path in self.verdict_files:
            try:
                verdict = json.loads(observation.files.get(path) or "null")
            except ValueError:
                continue
            if isinstance(verdict, dict) and int(verdict.get("attempt", 0)) >= self.producer_attempt:
                return verdict
        return None
