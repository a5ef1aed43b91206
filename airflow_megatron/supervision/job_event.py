"""What the trigger that follows a job hands to the worker that acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.verdict import Verdict
from airflow_megatron.supervision.job_reference import JobHandle

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class JobEvent:
    """An event of :class:`airflow_megatron.triggers.slurm_job.SlurmJobTrigger`.

    :param verdict: on an attempt that has ended, else None
    :param seen: events of the job and alarms of its health; None when the deadline has passed
    :param memory: what a later trigger of the attempt needs to go on, where the job runs on
    :param error: last error in the log of an attempt that has ended
    :param log_tail: last lines of the log
    :param carry: what the trigger was given to hand back
    """

    verdict: Verdict | None = None
    seen: tuple[Occurrence, ...] | None = None
    memory: Mapping[str, Any] | None = None
    error: str | None = None
    log_tail: tuple[str, ...] = ()
    carry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_deadline(self) -> bool:
        """Whether nothing has happened but that the task's time is over."""
        return self.verdict is None and self.seen is None

    @property
    def handle(self) -> JobHandle:
        """The attempt that was followed.

        :raises ValueError: when the trigger was given none
        """
        return JobHandle.from_json(self.carry.get("handle") or {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobEvent:
        """Return the event that :meth:`to_json` wrote, of this version or an earlier one.

        :raises KeyError: for a verdict without outcome or reason; ValueError: for an unknown outcome, and for something
            seen that does not name what is to be done
        """
        seen, verdict = value.get("seen"), value.get("verdict")
        return cls(
            verdict=Verdict.from_json(verdict) if verdict is not None else None,
            seen=tuple(map(Occurrence.from_json, seen)) if seen is not None else None,
            memory=value.get("memory"),
            error=value.get("error"),
            log_tail=tuple(value.get("log_tail") or ()),
            carry=value.get("carry") or {},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the payload of Airflow's event."""
        value: dict[str, Any] = {"log_tail": list(self.log_tail), "carry": dict(self.carry)}
        if self.seen is not None:
            value["seen"] = [item.to_json() for item in self.seen]
        if self.verdict is not None:
            value |= {"verdict": self.verdict.to_json(), "error": self.error}
        if self.memory is not None:
            value["memory"] = dict(self.memory)
        return value
