"""Trigger that waits for a line in a job's log."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_megatron.slurm.observation import Watch
from airflow_megatron.triggers.cluster_poller import shared_poller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

CARRY_BYTES = 64 * 1024


class LogPatternTrigger(BaseTrigger):
    """Wait until a line of ``log_file`` matches ``pattern``.

    Yields one event: ``{"status": "found", "line": …}``, ``{"status": "missed", "reason": …}`` when the job that writes
    the log has ended without, or ``{"status": "timeout"}``.

    :param ssh_conn_id: connection to the login node
    :param commands: keyword arguments of :class:`airflow_megatron.slurm.profile.SlurmCommands`
    :param log_file: the log on the cluster
    :param pattern: regular expression, searched in each line
    :param producer_dir: stage directory of the job that writes it, or None
    :param producer_attempt: the attempt from which on that job's verdict counts
    :param poll_interval: seconds between two looks at the cluster
    :param deadline: Unix time after which to stop waiting, or None
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str,
        commands: Mapping[str, Any],
        log_file: str,
        pattern: str,
        producer_dir: str | None = None,
        producer_attempt: int = 1,
        poll_interval: float = 15.0,
        deadline: float | None = None,
    ) -> None:
        super().__init__()
        self.ssh_conn_id = ssh_conn_id
        self.commands = dict(commands)
        self.log_file = log_file
        self.pattern = pattern
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
                "log_file": self.log_file,
                "pattern": self.pattern,
                "producer_dir": self.producer_dir,
                "producer_attempt": self.producer_attempt,
                "poll_interval": self.poll_interval,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Search new bytes of the log at every tick of the cluster's poller."""
        pattern = re.compile(self.pattern)
        verdict_file = f"{self.producer_dir}/verdict.json"
        carry = b""
        watch = Watch(
            key=f"{self.log_file}#{id(self)}",
            log_file=self.log_file,
            read_files=(verdict_file,) if self.producer_dir else (),
        )
        async with shared_poller(self.ssh_conn_id, self.commands, self.poll_interval).subscribe(
            watch
        ) as subscription:
            async for observation in subscription:
                chunk = observation.log_chunk
                *lines, carry = (carry + chunk).split(b"\n")
                carry = carry[-CARRY_BYTES:]
                for line in (*lines, carry):
                    text = line.decode(errors="replace")
                    if pattern.search(text):
                        yield TriggerEvent({"status": "found", "line": text.strip()})
                        return
                if not chunk and self._ended(observation.files.get(verdict_file)):
                    reason = (
                        f"the job has ended and {self.log_file} has no line that matches {self.pattern!r}"
                    )
                    yield TriggerEvent({"status": "missed", "reason": reason})
                    return
                if self.deadline is not None and time.time() > self.deadline:
                    yield TriggerEvent(
                        {"status": "timeout", "reason": f"no line matches {self.pattern!r} yet"}
                    )
                    return

    def _ended(self, text: str | None) -> bool:
        try:
            verdict = json.loads(text) if text else None
        except ValueError:
            return False
        return isinstance(verdict, dict) and int(verdict.get("attempt", 0)) >= self.producer_attempt
