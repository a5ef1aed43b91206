"""What the training jobs of a plan will need on the GPUs of their cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.megatron.arguments import ArgumentError
from airflow_megatron.megatron.commands import megatron_arguments
from airflow_megatron.megatron.estimates import GPUS, Estimate, EstimateError, Gpu, estimate
from airflow_megatron.planning.job_machine import machine_of
from airflow_megatron.spec.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.file_values import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.megatron.validation import Machine
    from airflow_megatron.spec.cluster_profile import ClusterProfile
    from airflow_megatron.spec.jobs import Job

_DIRECTORIES = frozenset(("save", "load", "tensorboard_dir"))


@dataclass(frozen=True)
class JobEstimate:
    """What one job will need.

    :param needs: memory, operations and parameters
    :param gpu: the cluster's kind of GPU
    :param gpu_hours: of the whole training at the utilisation that the profile gives, None without one
    :param mfu: Model FLOPs utilisation (0 to 1) at the step time that a benchmark reports, None without one
    """

    needs: Estimate
    gpu: Gpu
    gpu_hours: float | None
    mfu: float | None = None

    @property
    def runs_out_of_memory(self) -> bool:
        """Whether the fullest GPU has no room."""
        return self.needs.runs_out_of_memory(self.gpu)

    @property
    def memory_gb(self) -> float:
        """Memory of the fullest GPU, in 10^9 bytes."""
        return self.needs.memory_bytes / 1e9

    def to_json(self) -> dict[str, object]:
        """Return what ``plan --format json`` prints."""
        return {
            "parameters": self.needs.parameters.total,
            "operations_per_iteration": self.needs.operations_per_iteration,
            "memory_gb": self.memory_gb,
            "gpu_hours": self.gpu_hours,
            "mfu": self.mfu,
        }


def job_estimates(jobs: Iterable[Job], cluster: ClusterProfile) -> dict[str, JobEstimate]:
    """Estimate the jobs that run a trainer; those whose size is not known are left out.

    :param jobs: of one cluster
    :param cluster: its profile; nothing is estimated when it does not say what GPUs it has
    :return: name of the job → what it will need
    :raises SpecError: when the profile names a GPU that is not known
    """
    if cluster.gpu is None:
        return {}
    if cluster.gpu not in GPUS:
        mend = did_you_mean(cluster.gpu, GPUS) or f"known: {', '.join(GPUS)}"
        raise SpecError(Problem(f"cluster {cluster.name}", 0, 0, f"there is no GPU {cluster.gpu!r}", mend))
    gpu = GPUS[cluster.gpu]
    known: dict[str, Estimate | None] = {}
    found: dict[str, JobEstimate] = {}
    for job in jobs:
        if not job.runs_trainer or job.script is not None:
            continue
        params = {
            name: value
            for name, value in megatron_arguments(job, cluster).items()
            if name not in _DIRECTORIES and path_of(value) is None
        }
        key = repr((sorted(params.items()), job.world_size, job.release, sorted(job.env.items())))
        if key not in known:
            known[key] = _estimate(params, job, machine_of(job, cluster))
        needs = known[key]
        if needs is None:
            continue
        hours = needs.gpu_hours(needs.step_s(cluster.mfu, gpu)) if cluster.mfu else None
        step_ms = job.measure.get("reported", {}).get("step_ms")
        mfu = needs.utilisation(step_ms / 1000, gpu) if step_ms else None
        found[job.name] = JobEstimate(needs, gpu, hours, mfu)
    return found


def _estimate(params: dict[str, object], job: Job, machine: Machine) -> Estimate | None:
    try:
        return estimate(params, job.world_size, job.release, machine=machine)
    except (ArgumentError, EstimateError):
        return None  # what is wrong with it is told by the checks of arguments
