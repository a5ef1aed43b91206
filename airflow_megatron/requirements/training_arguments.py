"""The Megatron arguments of training jobs, as the checks before submission look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.arguments.values import ArgumentValues
from airflow_megatron.megatron.commands.commands import megatron_arguments
from airflow_megatron.megatron.trainers.trainer_table import job_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


class TrainingArguments(ArgumentValues):
    """The arguments of one training job.

    :param job: a job of kind ``train``
    :param cluster: its cluster profile, which may bring arguments along
    """

    def __init__(self, job: Job, cluster: ClusterProfile) -> None:
        self.job = job
        table = job_table(job, cluster)
        super().__init__(table, megatron_arguments(job, cluster))


def training_arguments(jobs: Iterable[Job], cluster: ClusterProfile) -> dict[str, TrainingArguments]:
    """Return the arguments of the training jobs, by run directory."""
    return {job.run_dir: TrainingArguments(job, cluster) for job in jobs if job.trains}
