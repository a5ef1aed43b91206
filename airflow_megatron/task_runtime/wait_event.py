"""Event of a trigger that waits for something to hold, to exist or to be written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.trust.json_records import word

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class WaitEvent:
    """How a wait has ended.

    :param status: ``holds``, ``complete`` or ``found`` when what was waited for is there; ``finished`` when it is not
        needed any more; ``missed`` when it cannot come any more; ``timeout``
    :param reason: one sentence
    :param path: of the checkpoint that is complete
    :param line: the line that was found
    :param carry: what the trigger was given to hand back
    """

    status: str
    reason: str | None = None
    path: str | None = None
    line: str | None = None
    carry: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WaitEvent:
        """Return the event that :meth:`to_json` wrote; unknown keys are ignored."""
        carry = value.get("carry")
        return cls(
            status=str(value.get("status")),
            reason=word(value.get("reason")),
            path=word(value.get("path")),
            line=value.get("line") if isinstance(value.get("line"), str) else None,
            carry=carry if isinstance(carry, dict) else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the payload of Airflow's event."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_timeout(self) -> bool:
        """Whether the wait is over before anything has happened."""
        return self.status == "timeout"
