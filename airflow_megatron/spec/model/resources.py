"""The Slurm resources of a job: those of its stage with every expression resolved."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from airflow_megatron.spec.documents.quantities import parse_duration
from airflow_megatron.spec.model.schema import SlurmSection

Count = Annotated[int, Field(ge=0, le=2**32 - 3, strict=True)]  # larger ones mean something else to Slurm
Seconds = Annotated[int, BeforeValidator(parse_duration)]


class JobResources(SlurmSection):
    """Resources as plain numbers, without expressions; None if nothing is requested."""

    nodes: Count | None = None
    gpus_per_node: Count | None = None
    cpus_per_task: Count | None = None
    mem: str | None = None
    time: Seconds | None = None
    """Walltime of one attempt, in seconds."""
    signal_before: Seconds | None = None
    """Seconds before the walltime at which the job gets the signal to save and exit."""

    @property
    def node_count(self) -> int:
        """Number of nodes, default one."""
        return self.nodes if self.nodes is not None else 1

    @property
    def gpus(self) -> int:
        """GPUs on each node, default none."""
        return self.gpus_per_node or 0

    @property
    def gpu_processes(self) -> int:
        """Processes on each node of a job with one process per GPU; one without GPUs."""
        return self.gpus_per_node or 1
