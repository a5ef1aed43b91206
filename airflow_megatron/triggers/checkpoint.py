"""Trigger that waits for a complete checkpoint of exactly one iteration."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_megatron.megatron.checkpoints import checkpoint_verdict, directory_name
from airflow_megatron.slurm.observation import Observation, Watch
from airflow_megatron.triggers.cluster_poller import shared_poller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


class CheckpointTrigger(BaseTrigger):
    """Wait until ``checkpoint_dir`` holds a complete checkpoint of ``iteration``.

    Yields one event: ``{"status": "complete", "path": …}``, ``{"status": "missed", "reason": …}`` when the job that
    should save it has ended without, or ``{"status": "timeout"}``.

    :param ssh_conn_id: connection to the login node
    :param commands: keyword arguments of :class:`airflow_megatron.slurm.profile.SlurmCommands`
    :param checkpoint_dir: Megatron's ``--save`` directory
    :param iteration: the iteration, exactly
    :param producer_dir: stage directory of the job that saves it, or None
    :param producer_attempt: the attempt from which on that job's verdict counts
    :param poll_interval: seconds between two looks at the cluster
    :param deadline: Unix time after which to stop waiting, or None
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str,
        commands: Mapping[str, Any],
        checkpoint_dir: str,
        iteration: int,
        producer_dir: str | None = None,
        producer_attempt: int = 1,
        poll_interval: float = 15.0,
        deadline: float | None = None,
    ) -> None:
        super().__init__()
        self.ssh_conn_id = ssh_conn_id
        self.commands = dict(commands)
        self.checkpoint_dir = checkpoint_dir
        self.iteration = iteration
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
                "checkpoint_dir": self.checkpoint_dir,
                "iteration": self.iteration,
                "producer_dir": self.producer_dir,
                "producer_attempt": self.producer_attempt,
                "poll_interval": self.poll_interval,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the directory at every tick of the cluster's poller."""
        said = ""
        async with shared_poller(self.ssh_conn_id, self.commands, self.poll_interval).subscribe(
            self._watch()
        ) as subscription:
            async for observation in subscription:
                event, text = self._look(observation)
                if text != said:
                    self.log.info("%s", text)
                    said = text
                if event is not None:
                    yield TriggerEvent(event)
                    return
                if self.deadline is not None and time.time() > self.deadline:
                    yield TriggerEvent({"status": "timeout", "reason": text})
                    return

    def _watch(self) -> Watch:
        return Watch(
            key=f"{self.checkpoint_dir}@{self.iteration}#{id(self)}",
            checkpoint_dir=self.checkpoint_dir,
            read_files=(self._verdict_file,) if self.producer_dir else (),
        )

    @property
    def _verdict_file(self) -> str:
        return f"{self.producer_dir}/verdict.json"

    def _look(self, observation: Observation) -> tuple[dict[str, Any] | None, str]:
        if observation.unreachable is not None:
            return None, f"the login node does not answer: {observation.unreachable.reason}"
        name = directory_name(self.iteration)
        files = observation.checkpoint_files.get(name)
        state = checkpoint_verdict(files) if files else None
        if state is not None and state.is_complete:
            path = f"{self.checkpoint_dir}/{name}"
            return {"status": "complete", "path": path}, f"{path} is complete"
        what = f"{name} is {state.verdict}: {state.reason}" if state else f"{name} does not exist yet"
        verdict = self._producer_verdict(observation)
        if verdict is not None:
            end = f"{verdict.get('outcome')}: {verdict.get('reason')}"
            why = f"{verdict.get('job', 'the job')} ended ({end}) but {what}"
            return {"status": "missed", "reason": why}, why
        newest = max(observation.checkpoint_files, default=None)
        return None, what + (f"; the newest is {newest}" if newest else "")

    def _producer_verdict(self, observation: Observation) -> dict[str, Any] | None:
        text = observation.files.get(self._verdict_file) if self.producer_dir else None
        try:
            verdict = json.loads(text) if text else None
        except ValueError:
            return None
        if isinstance(verdict, dict) and int(verdict.get("attempt", 0)) >= self.producer_attempt:
            return verdict
        return None
