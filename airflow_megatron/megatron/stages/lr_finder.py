"""Stages that search for a learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.commands.trainer_stage import TrainerStage
from airflow_megatron.megatron.trainers.trainer import trainer_called

if TYPE_CHECKING:
    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.jobs import Job


class LrFinder(TrainerStage):
    """The trainer's search for a learning rate."""

    reported_as = "search"

    def default_arguments(self, job: Job, table: ArgumentTable) -> dict[str, Any]:
        """Start every attempt from scratch, and write the curve instead of checkpoints."""
        return {"save": job.run_dir, "load": None, "exit_signal_handler": None, "lr_finder": True}

    def final_arguments(
        self, job: Job, arguments: dict[str, Any], given: frozenset[str], table: ArgumentTable
    ) -> dict[str, Any]:
        """Return the arguments of the trainer's search."""
        return trainer_called(job.trainer).search_arguments(job, arguments, table)

    def outputs(self, job: Job) -> tuple[str, ...]:
        """Return the suggested learning rate."""
        return (job.layout.suggested_lr,)
