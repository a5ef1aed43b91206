"""GPU requirements of a plan's training jobs on their cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.tables import PRETRAIN_GPT, ArgumentError, program_table
from airflow_megatron.megatron.estimates.estimate import Estimate, EstimateError, estimate
from airflow_megatron.megatron.estimates.hardware import GPUS, Gpu
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.requirements.job_machine import machine_of
from airflow_megatron.spec.documents.errors import SpecError, did_you_mean
from airflow_megatron.spec.expressions.file_values import path_of
from airflow_megatron.spec.native.profile_places import ProfilePlaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.megatron.rules.settings import Machine
    from airflow_megatron.requirements.training_arguments import JobArguments
    from airflow_megatron.spec.model.jobs import Job

_DIRECTORIES = frozenset(("save", "load", "tensorboard_dir"))


@dataclass(frozen=True)
class JobEstimate:
    """Estimated requirements of one job.

    :param needs: memory, operations and parameters
    :param gpu: the cluster's kind of GPU
    :param gpu_hours: GPU-hours from its first checkpoint to its end, at the utilisation in the profile; None
        without one
    :param mfu: Model FLOPs utilisation (0 to 1) at the step time that a benchmark reports, None without one
    """

    needs: Estimate
    gpu: Gpu
    gpu_hours: float | None
    mfu: float | None = None

    @property
    def runs_out_of_memory(self) -> bool:
        """Whether the memory of the GPU that needs most is insufficient."""
        return self.needs.runs_out_of_memory(self.gpu)

    @property
    def memory_gb(self) -> float:
        """Memory of the GPU that needs most, in 10^9 bytes."""
        return self.needs.memory_bytes / 1e9

    @property
    def stages_gb(self) -> list[float]:
        """Memory of a GPU of each pipeline stage, first stage first, in 10^9 bytes."""
        return [stage.total / 1e9 for stage in self.needs.stages]

    def to_json(self) -> dict[str, object]:
        """Return the data for ``plan --format json``."""
        return {
            "parameters": self.needs.parameters.total,
            "parameters_without_padding": self.needs.parameters.without_padding,
            "operations_per_iteration": self.needs.operations_per_iteration,
            "memory_gb": self.memory_gb,
            "stages_gb": self.stages_gb,
            "gpu_hours": self.gpu_hours,
            "mfu": self.mfu,
        }


@dataclass(frozen=True)
class Estimates:
    """Estimates of the jobs of a plan that run a trainer.

    :param jobs: name of a job → its estimate
    :param missing: name of a job → reason why there is no estimate
    :param unknown_gpu: reason why no job has an estimate: the profile does not name the cluster's GPUs
    """

    jobs: Mapping[str, JobEstimate]
    missing: Mapping[str, str]
    unknown_gpu: str | None = None


def job_estimates(jobs: Iterable[Job], arguments: JobArguments) -> Estimates:
    """Estimate the jobs that run a trainer.

    :param jobs: jobs of one cluster
    :param arguments: arguments of these jobs; without a GPU model in the cluster's profile, nothing is estimated
    :raises SpecError: if the profile names an unknown GPU
    """
    cluster = arguments.cluster
    if cluster.gpu is None:
        return Estimates(
            {}, {}, f"the profile of cluster {cluster.name} does not name its GPUs; add gpu to it"
        )
    if cluster.gpu not in GPUS:
        hint = did_you_mean(cluster.gpu, GPUS) or f"known: {', '.join(GPUS)}"
        raise SpecError(ProfilePlaces(cluster).problem(("gpu",), f"there is no GPU {cluster.gpu!r}", hint))
    gpu = GPUS[cluster.gpu]
    known: dict[str, Estimate | str] = {}
    found: dict[str, JobEstimate] = {}
    missing: dict[str, str] = {}
    for job in jobs:
        if not job.runs_trainer or job.script is not None:
            continue
        params = _estimated_parameters(job, arguments.of(job))
        key = repr((sorted(params.items()), job.active_processes, job.release, sorted(job.env.items())))
        if key not in known:
            known[key] = _estimate(params, job, machine_of(job, cluster))
        needs = known[key]
        if isinstance(needs, str):
            missing[job.name] = needs
            continue
        hours = needs.gpu_hours(needs.step_s(cluster.mfu, gpu), _done(job, params)) if cluster.mfu else None
        step_s = job.measure.get("reported", {}).get("step_ms", 0) / 1000
        mfu = needs.utilisation(step_s, gpu) if step_s > 0 else None
        found[job.name] = JobEstimate(needs, gpu, hours, mfu)
    return Estimates(found, missing)


def _estimated_parameters(job: Job, arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the arguments of the release itself; additional arguments of forks do not affect sizes."""
    table = program_table(job.release)
    return {
        name: value
        for name, value in arguments.items()
        if name not in _DIRECTORIES and path_of(value) is None and table.get(name)
    }


def _done(job: Job, params: Mapping[str, object]) -> int:
    """Return the number of iterations before a job starts: those of the checkpoint that it continues."""
    if not job.trains or params.get("finetune"):
        return 0
    if job.source is not None:
        return 0 if job.source.mode == "finetune" else job.source.iteration or 0
    return (job.iteration or 0) if job.parent_dir is not None else 0


def _estimate(params: dict[str, object], job: Job, machine: Machine) -> Estimate | str:
    """Return an estimate, or the reason for a missing one."""
    if reason := trainer_called(job.trainer).no_estimates:
        return reason
    if job.entry not in ("", PRETRAIN_GPT):
        return f"there are estimates for GPT models only, not for those of {job.entry}"
    try:
        return estimate(params, job.active_processes, job.release, machine=machine)
    except (ArgumentError, EstimateError) as error:
        return str(error)
