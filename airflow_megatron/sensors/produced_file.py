"""Base of sensors that wait for a file of a job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.plan.described_job import seconds_of
from airflow_megatron.slurm.remote.quoting import QuotingError, checked_path
from airflow_megatron.slurm.remote.transport import LoginRefusedError
from airflow_megatron.supervision.attempts import slurm_commands
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.serial_execution import (
    has_time_left,
    serial_deadline,
    yield_to_watch_tasks,
)
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import cluster_profile
from airflow_megatron.task_runtime.wait_event import WaitEvent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_megatron.slurm.remote.profile import SlurmCommands
    from airflow_megatron.task_runtime.file_trigger import ProducedFileTrigger


class ProducedFileSensor(EndsTestRun, DeferringTask, BaseSensorOperator):
    """Wait for an output of a job. Always deferrable; all tasks share the polls of the cluster.

    The sensor fails at once if the producing job has ended without the output. ``timeout`` limits the wait.

    :param cluster: name of the cluster profile (templated)
    :param slurm_conn_id: instead of a profile, the Airflow connection to the login node, of type ``slurm`` or ``ssh``
        (templated)
    :param ssh_conn_id: alias of *slurm_conn_id* (templated)
    :param producer: handle of the producing job (templated)
    :param producer_dir: stage directory of that job (templated)
    :param pin: digest of the stored plan that holds the profile, empty for the current profile (templated)
    :param poll_interval: time between two polls of the cluster: seconds, ``30s`` or a timedelta
    """

    template_fields: Sequence[str] = (
        *("cluster", "slurm_conn_id", "ssh_conn_id"),
        *("producer", "producer_dir", "pin"),
    )
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        cluster: str | None = None,
        slurm_conn_id: str | None = None,
        ssh_conn_id: str | None = None,
        producer: Mapping[str, Any] | str | None = None,
        producer_dir: str | None = None,
        pin: str = "",
        poll_interval: float | str | timedelta = 15.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.slurm_conn_id = slurm_conn_id
        self.ssh_conn_id = ssh_conn_id
        self.producer = producer
        self.producer_dir = producer_dir
        self.pin = pin
        self.poll_interval = seconds_of("poll_interval", poll_interval)

    def trigger(self) -> ProducedFileTrigger:
        """Return the trigger.

        :raises AirflowSkipException: if there is nothing to wait for
        :raises AirflowFailException: if the arguments are invalid
        """
        raise NotImplementedError

    def execute(self, context: Context) -> None:
        """Start waiting."""
        self._wait()

    def _wait(self) -> None:
        self.defer(trigger=self.trigger(), method_name="execute_complete")

    def absolute(self, path: str) -> str:
        """Return a path on the cluster.

        :raises AirflowFailException: if it is not absolute, or cannot be passed to a shell
        """
        try:
            return checked_path(path)
        except QuotingError as error:
            raise AirflowFailException(str(error)) from None

    def trigger_arguments(self) -> dict[str, Any]:
        """Return the arguments that the triggers of these sensors share.

        :raises AirflowFailException: if the cluster profile, or the connection, cannot be used
        """
        ssh_conn_id, commands = self._connection()
        attempt = self.producer.get("attempt", 1) if isinstance(self.producer, Mapping) else 1
        return {
            "ssh_conn_id": ssh_conn_id,
            "commands": commands.to_json(),
            "producer_dir": self.producer_dir or None,
            "producer_attempt": int(attempt),
            "poll_interval": self.poll_interval,
            "deadline": serial_deadline(time.time() + self.timeout),
        }

    def _connection(self) -> tuple[str, SlurmCommands]:
        """Return the connection to the login node, and how Slurm's commands are found there."""
        hook = SlurmHook.named(self.slurm_conn_id, self.ssh_conn_id, self.cluster)
        if hook is None:
            profile = cluster_profile(str(self.cluster), self.pin)
            return profile.ssh_conn_id, slurm_commands(profile)
        try:
            return hook.ssh_conn_id, hook.commands
        except LoginRefusedError as error:
            raise AirflowFailException(str(error)) from None

    def take_turn(self, context: Context, event: Mapping[str, Any]) -> WaitEvent:
        """Return the end of a wait, or wait again if only the current turn has ended.

        See :mod:`airflow_megatron.task_runtime.serial_execution`.

        :param event: event of the trigger
        """
        ended = WaitEvent.from_json(event)
        if ended.is_timeout and has_time_left(context, self.timeout):
            if self.producer_dir and self.cluster:
                yield_to_watch_tasks([self.producer_dir], cluster_profile(self.cluster, self.pin), self.log)
            self._wait()
        if ended.is_timeout:
            return replace(
                ended, reason=f"{ended.reason}; the sensor's timeout of {self.timeout:g} s has passed"
            )
        return ended
