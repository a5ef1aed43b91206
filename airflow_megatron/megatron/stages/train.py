"""Stages that train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.commands.trainer_stage import TrainerStage
from airflow_megatron.megatron.trainers.trainer import trainer_called

if TYPE_CHECKING:
    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.jobs import Job


class Train(TrainerStage):
    """A training, which saves checkpoints and continues from them."""

    trains = True
    reports_checkpoints = True
    reported_as = "training"

    def final_arguments(
        self, job: Job, arguments: dict[str, Any], given: frozenset[str], table: ArgumentTable
    ) -> dict[str, Any]:
        """Disable the checkpoints of a training whose spec wants none (``save_interval: 0``)."""
        leaves_out = trainer_called(job.trainer).leaves_out_saving
        if leaves_out and "save" not in given and _saves_nothing(arguments):
            # like a command line without --save: no checkpoint is loaded, and a signal ends the job
            dropped = {"save", "load", "exit_signal_handler"} - given
            arguments |= dict.fromkeys((*dropped, "save_interval"))
        return arguments


def _saves_nothing(arguments: dict[str, Any]) -> bool:
    return "save_interval" in arguments and arguments["save_interval"] in (0, "0")
