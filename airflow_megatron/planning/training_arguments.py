"""The Megatron arguments of training jobs, as the checks before submission look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.commands import megatron_arguments
from airflow_megatron.megatron.trainers import trainer_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.spec.cluster_profile import ClusterProfile
    from airflow_megatron.spec.jobs import Job


class TrainingArguments:
    """The arguments of one training job by the names that Megatron keeps them under, defaults filled in.

    :param job: a job of kind ``train``
    :param cluster: its cluster profile, which may bring arguments along
    """

    def __init__(self, job: Job, cluster: ClusterProfile) -> None:
        self.job = job
        self.table = trainer_table(job.trainer, job.release, cluster, job.extra_arguments)
        self._given: Mapping[str, Any] = {
            argument.dest: value
            for name, value in megatron_arguments(job, cluster).items()
            if value is not None and (argument := self.table.get(name))
        }

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def value(self, name: str) -> Any:
        """Return the value of an argument, the release's default where it is not given."""
        if name in self._given:
            return self._given[name]
        argument = self.table.get(name)
        return argument.default if argument else None

    def number(self, name: str) -> float | None:
        """Return the value of an argument as a number, None where there is none; whole numbers stay ``int``."""
        value = self.value(name)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return int(value) if value == value // 1 else value

    def count(self, name: str) -> int | None:
        """Return the value of an argument that counts something, None where it is missing, zero or no whole number."""
        value = self.number(name)
        return value if isinstance(value, int) and value > 0 else None


def training_arguments(jobs: Iterable[Job], cluster: ClusterProfile) -> dict[str, TrainingArguments]:
    """Return the arguments of the training jobs, by run directory."""
    return {job.run_dir: TrainingArguments(job, cluster) for job in jobs if job.kind == "train"}
