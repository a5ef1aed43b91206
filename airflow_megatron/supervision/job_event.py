"""The event with which the trigger that watches a job resumes the task."""

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

    :param verdict: verdict on an attempt that has ended, else None
    :param seen: events and health alarms of the job; None if the deadline has passed
    :param memory: state with which a later trigger of a running attempt continues
    :param error: last error in the log of an attempt that has ended
    :param log_tail: last lines of the log
    :param carry: data of the task that the trigger returns unchanged
    """

    verdict: Verdict | None = None
    seen: tuple[Occurrence, ...] | None = None
    memory: Mapping[str, Any] | None = None
    error: str | None = None
    log_tail: tuple[str, ...] = ()
    carry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_deadline(self) -> bool:
        """Whether only the deadline of the task has passed."""
        return self.verdict is None and self.seen is None

    @property
    def handle(self) -> JobHandle:
        """The watched attempt.

        :raises ValueError: if the event has none
        """
        return JobHandle.from_json(self.carry.get("handle") or {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobEvent:
        """Parse the output of :meth:`to_json`, of this version or an earlier one.

        :raises KeyError: for a verdict without outcome or reason
        :raises ValueError: for an unknown outcome, and for an occurrence without an action
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
