"""Trigger that waits for a line in a job's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_megatron.slurm.observation import Watch
from airflow_megatron.spec.patterns import line_pattern
from airflow_megatron.triggers.produced_file import ProducedFileTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CARRY_BYTES = 64 * 1024


class LogPatternTrigger(ProducedFileTrigger):
    """Wait until a line of ``log_file`` matches ``pattern``.

    Yields one event: ``{"status": "found", "line": …}``, ``{"status": "missed", "reason": …}`` when the job that writes
    the log has ended without, or ``{"status": "timeout"}``.

    :param log_file: the log on the cluster
    :param pattern: regular expression, searched in each line
    :param kwargs: as for :class:`~airflow_megatron.triggers.produced_file.ProducedFileTrigger`
    """

    def __init__(self, *, log_file: str, pattern: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log_file = log_file
        self.pattern = pattern

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Search new bytes of the log at every tick of the cluster's poller."""
        pattern = line_pattern(self.pattern)
        carry = b""
        watch = Watch(key=self.log_file, log_file=self.log_file, read_files=self.verdict_files)
        async with self.poller.subscribe(watch) as subscription:
            async for observation in subscription:
                chunk = observation.log_chunk
                *lines, carry = (carry + chunk).split(b"\n")
                carry = carry[-CARRY_BYTES:]
                for line in (*lines, carry):
                    text = line.decode(errors="replace")
                    if pattern.search(text) is not None:
                        yield TriggerEvent({"status": "found", "line": text.strip()})
                        return
                if not chunk and self.producer_verdict(observation) is not None:
                    reason = (
                        f"the job has ended and {self.log_file} has no line that matches {self.pattern!r}"
                    )
                    yield TriggerEvent({"status": "missed", "reason": reason})
                    return
                if self.is_overdue:
                    yield TriggerEvent(
                        {"status": "timeout", "reason": f"no line matches {self.pattern!r} yet"}
                    )
                    return
