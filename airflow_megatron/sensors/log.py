"""Sensor for a line in a job's log."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_megatron.planning.attempts import slurm_commands
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.triggers.log_pattern import LogPatternTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class LogSensor(BaseOperator):
    """Wait until a line of a file on the cluster matches a regular expression.

    :param cluster: name of the cluster profile (templated)
    :param log_file: the file; None skips the task (templated)
    :param pattern: regular expression, searched in each line (templated)
    :param producer: handle of the job that writes it; when that job ends without, the sensor fails at once (templated)
    :param producer_dir: stage directory of that job (templated)
    :param poll_interval: seconds between two looks at the cluster
    :param timeout: seconds after which the sensor fails; None waits as long as it takes
    """

    template_fields: Sequence[str] = ("cluster", "log_file", "pattern", "producer", "producer_dir")
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        cluster: str,
        log_file: str | None,
        pattern: str | None,
        producer: Mapping[str, Any] | str | None = None,
        producer_dir: str | None = None,
        poll_interval: float = 15.0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.log_file = log_file
        self.pattern = pattern
        self.producer = producer
        self.producer_dir = producer_dir
        self.poll_interval = poll_interval
        self.timeout = timeout

    def execute(self, context: Context) -> str:
        """Start waiting."""
        if not self.log_file or self.pattern is None:
            raise AirflowSkipException("this point has no such stage")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise AirflowFailException(f"{self.pattern!r} is not a regular expression: {error}") from None
        cluster = load_cluster(self.cluster)
        attempt = self.producer.get("attempt", 1) if isinstance(self.producer, Mapping) else 1
        self.defer(
            trigger=LogPatternTrigger(
                ssh_conn_id=cluster.ssh_conn_id,
                commands=dataclasses.asdict(slurm_commands(cluster)),
                log_file=self.log_file,
                pattern=self.pattern,
                producer_dir=self.producer_dir or None,
                producer_attempt=int(attempt),
                poll_interval=self.poll_interval,
                deadline=time.time() + self.timeout if self.timeout else None,
            ),
            method_name="execute_complete",
        )
        raise AssertionError("defer does not return")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Return the line, or fail with the reason why there will be none."""
        if event["status"] != "found":
            raise AirflowFailException(f"{self.log_file}: {event.get('reason')}")
        self.log.info("found: %s", event["line"])
        return str(event["line"])
