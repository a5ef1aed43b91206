"""The Megatron arguments of training jobs for the checks before submission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.values import ArgumentValues
from airflow_megatron.megatron.commands.commands import megatron_arguments
from airflow_megatron.megatron.trainers.trainer_table import job_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


class JobArguments:
    """The Megatron arguments of jobs on a cluster, computed once per job while a plan is made and checked.

    :param cluster: the profile, which may add arguments
    """

    def __init__(self, cluster: ClusterProfile) -> None:
        self.cluster = cluster
        self._known: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._tables: dict[tuple[str, ...], ArgumentTable] = {}

    def of(self, job: Job) -> Mapping[str, Any]:
        """Return the result of :func:`.megatron_arguments` for a job that runs the trainer.

        :raises CommandError: as there
        """
        known = self._known.get(job.name)
        if known is None or known[0] is not job.params:  # another job of this name
            known = self._known[job.name] = job.params, megatron_arguments(job, self.cluster)
        return known[1]

    def table(self, job: Job) -> ArgumentTable:
        """Return the result of :func:`.job_table`.

        :raises ArgumentError, OSError, ValueError: as there
        """
        if job.extra_arguments:
            return job_table(job, self.cluster)
        key = job.trainer, job.release, job.entry, job.kind
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = job_table(job, self.cluster)
        return table


class TrainingArguments(ArgumentValues):
    """The arguments of one training job.

    :param job: a job of kind ``train``
    :param arguments: arguments of the jobs of its plan, or only its own
    """

    def __init__(self, job: Job, arguments: JobArguments) -> None:
        self.job = job
        super().__init__(arguments.table(job), arguments.of(job))


def training_arguments(jobs: Iterable[Job], arguments: JobArguments) -> dict[str, TrainingArguments]:
    """Return the arguments of the training jobs, by run directory."""
    return {job.run_dir: TrainingArguments(job, arguments) for job in jobs if job.trains}


def given_names(job: Job, table: ArgumentTable, arguments: Iterable[str]) -> tuple[str, ...]:
    """Return the names by which a spec gives some of a trainer's arguments, in their order.

    :param table: what the trainer takes
    :param arguments: by ``dest`` or flag; others than those of the table are ignored
    """
    given = dict(zip(table.dests(tuple(job.params)), job.params, strict=True))
    wanted = (argument.dest for name in arguments if (argument := table.get(name)))
    return tuple(dict.fromkeys(given[dest] for dest in wanted if dest in given))
