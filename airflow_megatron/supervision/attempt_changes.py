"""Changes of an attempt against the job's plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job


@dataclass(frozen=True)
class AttemptChanges:
    """What one attempt does otherwise than its job's plan says; kept in its ``job.json``.

    :param exclude: nodes to keep off, besides the spec's own
    :param nodes: number of nodes, None for the plan's
    :param arguments: words added at the end of a training's command: the last of two equal arguments counts
    :param resumes_from: the iteration of the checkpoint that it has to begin with, 0 for none
    :param first: the first attempt of this run of the job: what older ones have left behind belongs to an earlier run;
        0 where that is not known
    :param log_from: bytes of a log that all attempts share which were there before this one
    :param after_job: id of the attempt before, for whose end this one waits in Slurm's queue; None when that has ended
    """

    exclude: tuple[str, ...] = ()
    nodes: int | None = None
    arguments: tuple[str, ...] = ()
    resumes_from: int = 0
    after_job: str | None = None
    first: int = field(default=0, compare=False)
    log_from: int = field(default=0, compare=False)

    def applied(self, job: Job) -> Job:
        """Return the job as this attempt runs it."""
        slurm = job.slurm if self.nodes is None else job.slurm.model_copy(update={"nodes": self.nodes})
        return msgspec.structs.replace(job, slurm=slurm, command=(*job.command, *self.arguments))


AS_PLANNED = AttemptChanges()
