"""The nodes of a training job, as far as Megatron's own checks ask about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_megatron.megatron.estimates import GPUS
from airflow_megatron.megatron.validation import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import TrainerName


def machine_of(job: Job, cluster: ClusterProfile) -> Machine:
    """Return the environment, Transformer Engine, packages and compute capability of a job."""
    return trainer_machine(job.trainer, cluster, job.env)


def trainer_machine(trainer: TrainerName, cluster: ClusterProfile, env: Mapping[str, object]) -> Machine:
    """Return what a trainer's jobs find on the nodes of a cluster.

    :param env: variables of the job itself
    """
    section = cluster.trainer(trainer)
    gpu = GPUS.get(cluster.gpu or "")
    named = Machine.of(
        transformer_engine=section.transformer_engine,
        compute_capability=gpu.compute_capability if gpu else None,
        environment={**cluster.env, **section.env, **env},
        packages=section.packages,
    )
    return replace(named, device=section.device, is_complete=True)
