"""Stages that run the sweep's trainer on all GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.model.stage_kinds import StageKind

if TYPE_CHECKING:
    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.jobs import Job


class TrainerStage(StageKind):
    """A stage that runs the trainer; a subclass adds arguments to those of the spec."""

    runs_trainer = True
    template = "train.sbatch.j2"

    def default_arguments(self, job: Job, table: ArgumentTable) -> dict[str, Any]:
        """Return the default arguments of the stage; None removes a default of all trainings."""
        return {}

    def final_arguments(
        self, job: Job, arguments: dict[str, Any], given: frozenset[str], table: ArgumentTable
    ) -> dict[str, Any]:
        """Return the arguments that are passed to the trainer.

        :param arguments: the defaults and those of the spec
        :param given: ``dest`` of those of the spec
        :raises CommandError: if they do not fit this kind of stage
        """
        return arguments


def trainer_stage(job: Job) -> TrainerStage:
    """Return the kind of a job that runs the trainer.

    :raises TypeError: if it is of another kind
    """
    kind = job.stage_kind
    if not isinstance(kind, TrainerStage):
        raise TypeError(f"{type(kind).__name__}, the kind of {job.name}, does not extend TrainerStage")
    return kind
