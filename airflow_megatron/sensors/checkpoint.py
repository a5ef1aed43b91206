"""Sensor for a Megatron checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.sensors.produced_file import ProducedFileSensor
from airflow_megatron.task_runtime.stored_plan import without_job
from airflow_megatron.triggers.checkpoint import CheckpointTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class CheckpointSensor(ProducedFileSensor):
    """Wait until a directory holds a complete Megatron checkpoint of exactly one iteration.

    Completeness is judged by the checkpoint's format, from one listing; see
    :func:`airflow_megatron.megatron.checkpoints.completeness.checkpoint_verdict`.

    :param path: Megatron's ``--save`` directory; None skips the task (templated)
    :param iteration: the iteration (templated)
    :param kwargs: as for :class:`~airflow_megatron.sensors.produced_file.ProducedFileSensor`
    """

    template_fields: Sequence[str] = (*ProducedFileSensor.template_fields, "path", "iteration")

    def __init__(self, *, path: str | None, iteration: int | str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.iteration = iteration

    def trigger(self) -> CheckpointTrigger:
        """Return the trigger that waits for the checkpoint."""
        if (not self.path and self.path != "") or self.iteration is None:
            raise without_job()
        path, iteration = self.absolute(self.path), str(self.iteration).strip()
        if not (iteration.isascii() and iteration.isdecimal()):
            raise AirflowFailException(f"iteration is {self.iteration!r}; write a whole number")
        return CheckpointTrigger(checkpoint_dir=path, iteration=int(iteration), **self.trigger_arguments())

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Return the checkpoint's path, or fail if it can no longer be written."""
        found = self.take_turn(context, event)
        if found.status != "complete":
            raise AirflowFailException(
                f"no complete checkpoint of iteration {self.iteration} in {self.path}: {found.reason}"
            )
        self.log.info("%s is complete", found.path)
        return str(found.path)
