"""Sensor for a Megatron checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_megatron.planning.attempts import slurm_commands
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.triggers.checkpoint import CheckpointTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointSensor(BaseOperator):
    """Wait until a directory holds a complete Megatron checkpoint of exactly one iteration.

    Completeness is judged by the checkpoint's format, from one listing; see
    :func:`airflow_megatron.megatron.checkpoints.checkpoint_verdict`. Always deferrable: the looks at the cluster are
    shared with everything else that waits for it.

    :param cluster: name of the cluster profile (templated)
    :param checkpoint_dir: Megatron's ``--save`` directory; None skips the task (templated)
    :param iteration: the iteration (templated)
    :param producer: handle of the job that saves it; when that job ends without, the sensor fails at once (templated)
    :param producer_dir: stage directory of that job (templated)
    :param poll_interval: seconds between two looks at the cluster
    :param timeout: seconds after which the sensor fails; None waits as long as it takes
    """

    template_fields: Sequence[str] = ("cluster", "checkpoint_dir", "iteration", "producer", "producer_dir")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        cluster: str,
        checkpoint_dir: str | None,
        iteration: int | str | None,
        producer: Mapping[str, Any] | str | None = None,
        producer_dir: str | None = None,
        poll_interval: float = 15.0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.checkpoint_dir = checkpoint_dir
        self.iteration = iteration
        self.producer = producer
        self.producer_dir = producer_dir
        self.poll_interval = poll_interval
        self.timeout = timeout

    def execute(self, context: Context) -> str:
        """Start waiting."""
        if not self.checkpoint_dir or self.iteration is None:
            raise AirflowSkipException("this point has no such stage")
        cluster = load_cluster(self.cluster)
        attempt = self.producer.get("attempt", 1) if isinstance(self.producer, Mapping) else 1
        self.defer(
            trigger=CheckpointTrigger(
                ssh_conn_id=cluster.ssh_conn_id,
                commands=dataclasses.asdict(slurm_commands(cluster)),
                checkpoint_dir=self.checkpoint_dir,
                iteration=int(self.iteration),
                producer_dir=self.producer_dir or None,
                producer_attempt=int(attempt),
                poll_interval=self.poll_interval,
                deadline=time.time() + self.timeout if self.timeout else None,
            ),
            method_name="execute_complete",
        )
        raise AssertionError("defer does not return")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Return the checkpoint's path, or fail with the reason why there will be none."""
        if event["status"] != "complete":
            raise AirflowFailException(
                f"no complete checkpoint of iteration {self.iteration} in {self.checkpoint_dir}: {event.get('reason')}"
            )
        self.log.info("%s is complete", event["path"])
        return str(event["path"])
