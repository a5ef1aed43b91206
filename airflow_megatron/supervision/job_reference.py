"""Reference to a submitted job, passed by XCom."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.remote.quoting import QuotingError, checked_job_id, checked_job_name
from airflow_megatron.spec.trust.json_records import whole, word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.jobs import Job


@dataclass(frozen=True)
class JobHandle:
    """A submitted job.

    :param job: its name in the sweep
    :param attempt: number of the attempt
    :param job_id: Slurm id, None if the job had finished before and the id is unknown
    :param finished: whether it had finished before, so that there is nothing to wait for
    :param cancelled: whether its condition had cancelled it before, so that there is nothing to wait for
    :param resumes_from: iteration of the checkpoint that the attempt must load, 0 for none
    :param first: first attempt of this run of the job, 0 if unknown
    :param log_from: offset of this attempt's output in its log, in bytes
    :param job_name: Slurm's name of the job if it differs from the attempt's name, as for a task of an array
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

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobHandle:
        """Parse the reference in an XCom, of this version or an earlier one; unknown keys are ignored.

        :raises ValueError: without the number of the attempt
        """
        attempt = whole(value.get("attempt"))
        if attempt is None:
            raise ValueError(f"the reference to a submitted job has no number of an attempt: {dict(value)}")
        job_id = value.get("job_id")
        return cls(
            job=str(value.get("job") or ""),
            attempt=attempt,
            job_id=str(job_id) if job_id is not None else None,
            finished=bool(value.get("finished")),
            cancelled=bool(value.get("cancelled")),
            resumes_from=whole(value.get("resumes_from"), 0),
            job_name=word(value.get("job_name")),
            first=whole(value.get("first"), 0),
            log_from=whole(value.get("log_from"), 0),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, from which :meth:`from_json` makes an equal reference."""
        return asdict(self)

    def is_of(self, job: Job) -> bool:
        """Return whether it can be an attempt of a job. An array has another name, which begins with the sweep's."""
        name = self.job_name or f"{job.sweep}."
        return self.job == job.name and name.startswith(f"{job.sweep}.") and self._can_be_asked_for

    @property
    def _can_be_asked_for(self) -> bool:
        """Whether Slurm can be asked for the job, unless there is nothing to wait for."""
        try:
            if self.job_name is not None:
                checked_job_name(self.job_name)
            if self.job_id is not None:
                checked_job_id(self.job_id)
        except QuotingError:
            return False
        return self.job_id is not None or self.finished or self.cancelled

    @property
    def run_began(self) -> int:
        """The first attempt of this run of the job."""
        return self.first or (1 if self.finished else self.attempt)
