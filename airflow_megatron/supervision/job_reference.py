"""What a submitted job is known by to the tasks that follow it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobHandle:
    """A submitted job.

    :param job: its name in the sweep
    :param attempt: number of the attempt
    :param job_id: Slurm id, None when it had finished before and the id is not known any more
    :param finished: it had finished before; there is nothing to wait for
    :param cancelled: its own condition had cancelled it before; there is nothing to wait for
    :param resumes_from: the iteration of the checkpoint that it has to begin with, 0 for none
    :param first: the first attempt of this run of the job, 0 where that is not known
    :param log_from: byte at which what this attempt writes begins in its log
    :param job_name: its name in Slurm where that is not the attempt's own: of a task of an array
    """

    job: str
    attempt: int
    job_id: str | None
    finished: bool = False
    cancelled: bool = False
    resumes_from: int = 0
    job_name: str | None = None
    first: int = 0
    log_from: int = 0

    @property
    def run_began(self) -> int:
        """The first attempt that counts as this run of the job."""
        return self.first or (1 if self.finished else self.attempt)
