"""Check that trainings fit into the memory of their GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.requirements.training_estimates import JobEstimate
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

_KEYS = ("micro_batch_size",)


def memory_findings(
    jobs: Sequence[Job], estimates: Mapping[str, JobEstimate], cluster: ClusterProfile
) -> Iterator[Finding]:
    """Yield the jobs that will probably run out of memory, and those that probably will not although expected.

    :param estimates: estimates by name of the job
    """
    for job in jobs:
        found = estimates.get(job.name)
        if found is None or (full := found.runs_out_of_memory) is (job.expect == "oom"):
            continue
        gpu = found.gpu
        needs = f"{found.memory_gb:.0f} GB of the {gpu.memory_bytes / 1e9:.0f} GB of one {cluster.gpu}"
        if full:
            message = f"is estimated to need {needs}, so it will probably run out of memory"
            hint = "smaller micro_batch_size, more parallelism, recomputation; or expect: oom"
        else:
            message = f"is expected to run out of memory, but is estimated to need {needs}"
            hint = "remove expect, or increase the memory that the job needs"
        yield Finding("memory", job, _KEYS, message, hint, warning=True)
