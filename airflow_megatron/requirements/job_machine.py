"""The properties of a training job's nodes on which Megatron's own checks depend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_megatron.megatron.estimates.hardware import GPUS
from airflow_megatron.megatron.rules.settings import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import TrainerName


def machine_of(job: Job, cluster: ClusterProfile) -> Machine:
    """Return the environment, Transformer Engine, packages and compute capability of a job."""
    return trainer_machine(job.trainer, cluster, job.env)


def trainer_machine(trainer: TrainerName, cluster: ClusterProfile, env: Mapping[str, object]) -> Machine:
    """Return the machine of a trainer's jobs on a cluster.

    :param env: environment variables of the job itself
    """
    section = cluster.trainer(trainer)
    gpu = GPUS.get(cluster.gpu or "")
    named = Machine.of(
        transformer_engine=section.transformer_engine,
        compute_capability=gpu.compute_capability if gpu else None,
        environment={**cluster.env, **section.env, **env},
        packages=section.packages,
        missing=section.missing_packages,
    )
    return replace(named, device=section.device, is_complete=True)
