"""Base of sensors that wait for a file of a job."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from airflow_megatron.supervision.attempts import slurm_commands
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import cluster_profile
from airflow_megatron.task_runtime.turns import has_time_left, pass_turn, turn_deadline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_megatron.task_runtime.file_trigger import ProducedFileTrigger


class ProducedFileSensor(EndsTestRun, BaseSensorOperator):
    """Wait for something that a job writes. Always deferrable: the looks at the cluster are shared by all tasks.

    The sensor fails at once when the job that should write has ended without. ``timeout`` bounds the wait.

    :param cluster: name of the cluster profile (templated)
    :param producer: handle of the job that writes (templated)
    :param producer_dir: stage directory of that job (templated)
    :param pin: digest of the stored plan that holds the profile, empty for the profile as it is now (templated)
    :param poll_interval: seconds between two looks at the cluster
    """

    template_fields: Sequence[str] = ("cluster", "producer", "producer_dir", "pin")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        cluster: str,
        producer: Mapping[str, Any] | str | None = None,
        producer_dir: str | None = None,
        pin: str = "",
        poll_interval: float = 15.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.producer = producer
        self.producer_dir = producer_dir
        self.pin = pin
        self.poll_interval = poll_interval

    def trigger(self) -> ProducedFileTrigger:
        """Return what waits.

        :raises AirflowSkipException: when there is nothing to wait for
        :raises AirflowFailException: when what is asked for cannot be
        """
        raise NotImplementedError

    def execute(self, context: Context) -> None:
        """Start waiting."""
        self._wait()

    def _wait(self) -> None:
        self.defer(trigger=self.trigger(), method_name="execute_complete")

    def trigger_arguments(self) -> dict[str, Any]:
        """Return the arguments that the triggers of these sensors share.

        :raises AirflowFailException: when the cluster profile cannot be used
        """
        cluster = cluster_profile(self.cluster, self.pin)
        attempt = self.producer.get("attempt", 1) if isinstance(self.producer, Mapping) else 1
        return {
            "ssh_conn_id": cluster.ssh_conn_id,
            "commands": dataclasses.asdict(slurm_commands(cluster)),
            "producer_dir": self.producer_dir or None,
            "producer_attempt": int(attempt),
            "poll_interval": self.poll_interval,
            "deadline": turn_deadline(time.time() + self.timeout),
        }

    def take_turn(self, context: Context, event: Mapping[str, Any]) -> None:
        """Wait again when a turn is over and the time is not: see :mod:`airflow_megatron.task_runtime.turns`.

        :param event: what the trigger said
        """
        if event["status"] == "timeout" and has_time_left(context, self.timeout):
            if self.producer_dir:
                pass_turn([self.producer_dir], cluster_profile(self.cluster, self.pin), self.log)
            self._wait()
