"""Trigger that waits for a complete checkpoint of exactly one iteration."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_megatron.megatron.checkpoints.completeness import (
    checkpoint_verdict,
    has_marks,
)
from airflow_megatron.slurm.states.observation import Observation, Watch
from airflow_megatron.spec.documents.checkpoint_directories import directory_name
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.task_runtime.condition_follower import beside_the_loop
from airflow_megatron.task_runtime.file_trigger import ProducedFileTrigger
from airflow_megatron.task_runtime.wait_event import WaitEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class CheckpointTrigger(ProducedFileTrigger):
    """Wait until ``checkpoint_dir`` holds a complete checkpoint of ``iteration``.

    Yields one event: ``{"status": "complete", "path": …}``, ``{"status": "missed", "reason": …}`` if the job that
    should save it has ended without it, or ``{"status": "timeout"}``.

    :param checkpoint_dir: Megatron's ``--save`` directory
    :param iteration: the exact iteration
    :param kwargs: as for :class:`~airflow_megatron.task_runtime.file_trigger.ProducedFileTrigger`
    """

    def __init__(self, *, checkpoint_dir: str, iteration: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkpoint_dir = checkpoint_dir
        self.iteration = iteration

    async def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Check the directory at every poll of the cluster."""
        logged = ""
        watch = Watch(
            key=f"{self.checkpoint_dir}@{self.iteration}",
            checkpoint_dir=self.checkpoint_dir,
            checkpoint_from=self.iteration,
            read_files=self.verdict_files,
        )
        async with self.poller.subscribe(watch) as subscription:
            async for observation in subscription:
                event, text = await beside_the_loop(
                    observation.listing_work, partial(self._look, observation)
                )
                if text != logged:
                    self.log.info("%s", text)
                    logged = text
                if event is not None:
                    yield TriggerEvent(event.to_json())
                    return
                if self.is_overdue:
                    yield TriggerEvent(WaitEvent("timeout", text).to_json())
                    return

    def _look(self, observation: Observation) -> tuple[WaitEvent | None, str]:
        if observation.unreachable is not None:
            return None, f"the login node does not answer: {observation.unreachable.reason}"
        name = directory_name(self.iteration, observation.checkpoint_files)
        files = observation.checkpoint_files.get(name)
        tracked = tracked_iteration(observation.tracker)
        marked = has_marks(observation.checkpoint_files)
        state = (
            checkpoint_verdict(files, iteration=self.iteration, tracked=tracked, marked=marked)
            if files
            else None
        )
        if state is not None and state.is_complete:
            path = f"{self.checkpoint_dir}/{name}"
            return WaitEvent("complete", path=path), f"{path} is complete"
        what = f"{name} is {state.verdict}: {state.reason}" if state else f"{name} does not exist yet"
        verdict = self.producer_verdict(observation)
        if verdict is not None:
            outcome = verdict.outcome.value if verdict.outcome else None
            why = f"{verdict.job or 'the job'} ended ({outcome}: {verdict.reason}) but {what}"
            return WaitEvent("missed", why), why
        newest = max(observation.checkpoint_files, default=None)
        return None, what + (f"; the newest is {newest}" if newest else "")
