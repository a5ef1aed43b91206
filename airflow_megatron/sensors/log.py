"""Sensor for a line in a job's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.sensors.produced_file import ProducedFileSensor
from airflow_megatron.spec.trust.patterns import PatternError, line_pattern
from airflow_megatron.spec.trust.plain_text import shown
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.task_runtime.stored_plan import without_job
from airflow_megatron.triggers.log_pattern import LogPatternTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class LogSensor(ProducedFileSensor):
    """Wait until a line of a file on the cluster matches a regular expression.

    :param path: the file, with ``{attempt}`` in it where each attempt of the job has its own; None skips the task
        (templated)
    :param pattern: regular expression of RE2's syntax, searched in each line in linear time (templated)
    :param kwargs: as for :class:`~airflow_megatron.sensors.produced_file.ProducedFileSensor`
    """

    template_fields: Sequence[str] = (*ProducedFileSensor.template_fields, "path", "pattern")

    def __init__(self, *, path: str | None, pattern: str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.pattern = pattern

    def trigger(self) -> LogPatternTrigger:
        """Return the trigger that waits for the line."""
        if (not self.path and self.path != "") or self.pattern is None:
            raise without_job()
        path = self.absolute(self.path)
        try:
            line_pattern(self.pattern)
        except PatternError as error:
            raise AirflowFailException(f"{error} {error.hint}".rstrip()) from None
        arguments = self.trigger_arguments()
        if isinstance(self.producer, Mapping):
            # lines of earlier attempts of this run count too
            arguments["producer_attempt"] = JobHandle.from_json(self.producer).run_began
        return LogPatternTrigger(log_file=path, pattern=self.pattern, **arguments)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Return the line, or fail if it can no longer be written."""
        found = self.take_turn(context, event)
        if found.status != "found":
            raise AirflowFailException(f"{self.path}: {found.reason}")
        self.log.info("found: %s", shown(str(found.line)))
        return str(found.line)
