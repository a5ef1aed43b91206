"""What a training job finds on its nodes, as far as Megatron's own checks ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.validation import Machine

if TYPE_CHECKING:
    from airflow_megatron.spec.cluster_profile import ClusterProfile
    from airflow_megatron.spec.jobs import Job


def machine_of(job: Job, cluster: ClusterProfile) -> Machine:
    """Return the environment and Transformer Engine of a job."""
    trainer = cluster.trainer(job.trainer)
    version = trainer.transformer_engine
    environment = {**cluster.env, **trainer.env, **job.env}
    return Machine(
        transformer_engine=tuple(int(part) for part in version.split(".")) if version else None,
        environment={name: str(value) for name, value in environment.items()},
    )
