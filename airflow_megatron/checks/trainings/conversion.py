"""Checks before submission of conversions and evaluations: the GPUs that their programs need, and misspelt params."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.megatron.commands.conversion_options import LIBRARIES
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.native.stages import KIND_PARAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.jobs import Job


def conversion_findings(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield what conversions and evaluations cannot do with their GPUs, and their params that are probably misspelt."""
    for job in jobs:
        yield from _gpu_findings(job)
        known = KIND_PARAMS.get(job.kind)
        if known is None:
            continue
        for name in job.variables:
            if name not in job.params or name in known:
                continue
            if hint := did_you_mean(name, known, limit=1, alike=0.8):
                message = f"{job.kind} does not read {name}"
                yield Finding(f"param:{name}", job, (name,), message, hint, warning=True)


def _gpu_findings(job: Job) -> Iterator[Finding]:
    """Yield a conversion by a library without a GPU, an evaluation that vLLM spreads over more than there are."""
    gpus = 1 if job.slurm.gpus_per_node is None else int(job.slurm.gpus_per_node)
    converter = job.params.get("converter")
    if job.kind == "convert" and converter in LIBRARIES and not gpus:
        yield Finding(
            "converter",
            job,
            ("converter",),
            f"{converter} converts on a GPU, and the job asks for none",
            "set slurm: {gpus_per_node: 1}, or leave converter out",
        )
    if job.kind == "evaluate" and job.params.get("eval_backend") == "vllm":
        needed = _vllm_gpus(job.params.get("eval_backend_arguments") or {})
        if needed > gpus:
            yield Finding(
                "eval_backend",
                job,
                ("eval_backend",),
                f"vllm runs on {needed} GPU{'s' if needed > 1 else ''}, and the job asks for {gpus}",
                f"set slurm: {{gpus_per_node: {needed}}}, or other eval_backend_arguments",
            )


def _vllm_gpus(arguments: dict[str, object]) -> int:
    needed = 1
    for name in ("tensor_parallel_size", "data_parallel_size"):
        size = arguments.get(name, 1)
        needed *= size if isinstance(size, int) else 1
    return needed
