"""Trigger that waits for a line in a job's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.supervision.condition_watch import ConditionResult
from airflow_megatron.task_runtime.condition_follower import followed
from airflow_megatron.task_runtime.file_trigger import ProducedFileTrigger
from airflow_megatron.task_runtime.wait_event import WaitEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class LogPatternTrigger(ProducedFileTrigger):
    """Wait until a line of ``log_file`` matches ``pattern``.

    Yields one event: ``{"status": "found", "line": …}``, ``{"status": "missed", "reason": …}`` if the job that writes
    the log has ended without it, or ``{"status": "timeout"}``.

    :param log_file: the log on the cluster; with ``{attempt}`` in it, the logs of all attempts from
        ``producer_attempt`` on, in order
    :param pattern: regular expression, searched in each line
    :param kwargs: as for :class:`~airflow_megatron.task_runtime.file_trigger.ProducedFileTrigger`
    """

    def __init__(self, *, log_file: str, pattern: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log_file = log_file
        self.pattern = pattern

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Search new bytes of the log at every poll of the cluster."""
        producer = self.producer_dir or ""
        condition = Condition("log", path=self.log_file, pattern=self.pattern, producer=producer)
        runs = {producer: self.producer_attempt}
        async with followed(self.poller, condition, runs) as follower:
            while True:
                truth = await follower.look()
                if truth is ConditionResult.YES:
                    yield TriggerEvent(WaitEvent("found", line=follower.line).to_json())
                    return
                if truth is ConditionResult.NEVER:
                    reason = (
                        f"the job has ended and {self.log_file} has no line that matches {self.pattern!r}"
                    )
                    yield TriggerEvent(WaitEvent("missed", reason).to_json())
                    return
                if self.is_overdue:
                    reason = f"no line matches {self.pattern!r} yet"
                    yield TriggerEvent(WaitEvent("timeout", reason).to_json())
                    return
