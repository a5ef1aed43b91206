"""The sources of a planned job's programs and inputs, for its provenance record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.arguments.data_blends import BLENDS
from airflow_megatron.slurm.submission.job_script import container_of
from airflow_megatron.slurm.submission.provenance import Origins
from airflow_megatron.spec.expressions.file_values import path_of
from airflow_megatron.spec.model.launch import CONTAINER_RUNTIMES

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


def job_origins(job: Job, cluster: ClusterProfile) -> Origins:
    """Return the locations of a job's Python, checkouts, data and container on its cluster."""
    checkout = cluster.trainer(job.trainer).checkout_of(job.release)
    checkouts = [cluster.megatron_lm_dir, *([checkout] if checkout and job.runs_trainer else [])]
    prefixes = [word for name in BLENDS for word in _words(job.params.get(name))] if job.runs_trainer else []
    container = container_of(job, cluster)
    return Origins(
        cluster.python_of(job.trainer),
        tuple(checkouts),
        tuple(f"{prefix}.idx" for prefix in dict.fromkeys(prefixes)),
        container.image if container else None,
        tuple(CONTAINER_RUNTIMES[container.runtime].alone(container)) if container else (),
        tuple(cluster.modules) if container else (),
    )


def _words(blend: object) -> list[str]:
    """Return the prefixes of a blend: absolute paths, without weights and without outputs of earlier jobs."""
    words = blend if isinstance(blend, (list, tuple)) else [blend]
    return [
        word for word in words if isinstance(word, str) and word.startswith("/") and path_of(word) is None
    ]
