"""The events with which triggers resume the tasks of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.verdict import Verdict
from airflow_megatron.spec.trust.json_records import real, whole
from airflow_megatron.supervision.attempt_memory import AttemptMemory
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
    :param watched: the watched attempt, which the trigger returns unchanged (in ``carry`` of the JSON)
    """

    verdict: Verdict | None = None
    seen: tuple[Occurrence, ...] | None = None
    memory: AttemptMemory | None = None
    error: str | None = None
    log_tail: tuple[str, ...] = ()
    watched: JobHandle | None = None

    @property
    def is_deadline(self) -> bool:
        """Whether only the deadline of the task has passed."""
        return self.verdict is None and self.seen is None

    @property
    def handle(self) -> JobHandle:
        """The watched attempt.

        :raises ValueError: if the event has none
        """
        if self.watched is None:
            raise ValueError("the event of a watched job has no number of an attempt")
        return self.watched

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobEvent:
        """Parse the output of :meth:`to_json`, of this version or an earlier one.

        :raises KeyError: for a verdict without outcome or reason
        :raises ValueError: for an unknown outcome, and for an occurrence without an action
        """
        seen, verdict, memory = value.get("seen"), value.get("verdict"), value.get("memory")
        handle = (value.get("carry") or {}).get("handle") or {}
        return cls(
            verdict=Verdict.from_json(verdict) if verdict is not None else None,
            seen=tuple(map(Occurrence.from_json, seen)) if seen is not None else None,
            memory=AttemptMemory.from_json(memory) if memory is not None else None,
            error=value.get("error"),
            log_tail=tuple(value.get("log_tail") or ()),
            watched=JobHandle.from_json(handle) if whole(handle.get("attempt")) is not None else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the payload of Airflow's event."""
        carry = {"handle": self.watched.to_json()} if self.watched is not None else {}
        value: dict[str, Any] = {"log_tail": list(self.log_tail), "carry": carry}
        if self.seen is not None:
            value["seen"] = [item.to_json() for item in self.seen]
        if self.verdict is not None:
            value |= {"verdict": self.verdict.to_json(), "error": self.error}
        if self.memory is not None:
            value["memory"] = self.memory.to_json()
        return value


@dataclass(frozen=True)
class DueAttempt:
    """An attempt that is submitted after a wait.

    :param number: number of the attempt, from 1
    :param since: Unix time at which it was deferred for the first time, None if it was not deferred
    """

    number: int
    since: float | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DueAttempt:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored.

        :raises ValueError: without the number
        """
        number = whole(value.get("number"))
        if number is None:
            raise ValueError(f"an attempt that is due has no number: {dict(value)}")
        return cls(number, real(value.get("since")))

    def to_json(self) -> dict[str, Any]:
        """Return the payload of Airflow's event."""
        return {"number": self.number} if self.since is None else {"number": self.number, "since": self.since}


@dataclass(frozen=True)
class UnwrittenVerdict:
    """A verdict that could not be written to the run root.

    :param event: the event that led to it
    :param verdict: the verdict, before the restart policy was applied
    :param refused: how often it could not be written
    """

    event: JobEvent
    verdict: Verdict
    refused: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UnwrittenVerdict:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored.

        :raises KeyError: without event or verdict
        """
        return cls(
            event=JobEvent.from_json(value["event"]),
            verdict=Verdict.from_json(value["verdict"]),
            refused=whole(value.get("refused"), 0),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the payload of Airflow's event."""
        return {
            "event": self.event.to_json(),
            "verdict": self.verdict.to_json(),
            "refused": self.refused,
        }
