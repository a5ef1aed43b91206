"""Differences of an attempt from the job's plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job


@dataclass(frozen=True)
class AttemptChanges:
    """The differences of one attempt from its job's plan, recorded in its ``job.json``.

    :param exclude: excluded nodes, in addition to those of the spec
    :param nodes: number of nodes, None for the number in the plan
    :param arguments: arguments appended to a training's command, where the last of several equal arguments has effect
    :param resumes_from: iteration of the checkpoint that the attempt must load, 0 for none
    :param first: first attempt of this run of the job, 0 if unknown; outputs of older attempts belong to earlier runs
    :param log_from: size in bytes of a log shared by all attempts before this attempt
    :param after_job: ids of the earlier attempts' jobs, separated by colons, for whose end this job waits in Slurm's
        queue; None if they have ended
    """

    exclude: tuple[str, ...] = ()
    nodes: int | None = None
    arguments: tuple[str, ...] = ()
    resumes_from: int = 0
    after_job: str | None = None
    first: int = field(default=0, compare=False)
    log_from: int = field(default=0, compare=False)

    def applied(self, job: Job) -> Job:
        """Return the job with these differences."""
        slurm = job.slurm if self.nodes is None else job.slurm.model_copy(update={"nodes": self.nodes})
        return msgspec.structs.replace(job, slurm=slurm, command=(*job.command, *self.arguments))


AS_PLANNED = AttemptChanges()
