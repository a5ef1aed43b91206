"""The state with which a later trigger of a running attempt continues."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.training_health import HealthMemory
from airflow_megatron.spec.trust.json_records import whole
from airflow_megatron.supervision.event_watch import EventMemory

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class LogMemory:
    """How far the log of an attempt was read and shown.

    :param offset: offset of the next byte to show
    :param shown_bytes: bytes of the log that the task's log shows
    :param left_out: lines that the task's log leaves out
    :param began: first iteration in the log, None without one
    :param reached: last iteration in the log, None without one
    """

    offset: int = 0
    shown_bytes: int = 0
    left_out: int = 0
    began: int | None = None
    reached: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LogMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        return cls(
            offset=whole(value.get("offset"), 0),
            shown_bytes=whole(value.get("shown_bytes"), 0),
            left_out=whole(value.get("left_out"), 0),
            began=whole(value.get("began")),
            reached=whole(value.get("reached")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class AttemptMemory:
    """The state of a trigger that watched an attempt.

    :param log: state of the report on the log, None if no trigger has watched the attempt before
    :param events: state of the events
    :param health: state of the health checks, None without health checks
    :param announced: whether the job has announced its checkpoint, see
        :class:`airflow_megatron.slurm.verdicts.verdict.Expectation`
    """

    log: LogMemory | None = None
    events: EventMemory = field(default_factory=EventMemory)
    health: HealthMemory | None = None
    announced: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AttemptMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        log, events, health = value.get("log"), value.get("events"), value.get("health")
        return cls(
            log=LogMemory.from_json(log) if log and isinstance(log, dict) else None,
            events=EventMemory.from_json(events if isinstance(events, dict) else {}),
            health=HealthMemory.from_json(health) if health and isinstance(health, dict) else None,
            announced=value.get("announced") is True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the argument ``memory`` of the next trigger."""
        value: dict[str, Any] = {"events": self.events.to_json(), "announced": self.announced}
        if self.log is not None:
            value["log"] = self.log.to_json()
        if self.health is not None:
            value["health"] = self.health.to_json()
        return value
