"""Event of a trigger that waits for a condition, a checkpoint or a line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.trust.json_records import word

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class WaitEvent:
    """The end of a wait.

    :param status: ``holds``, ``complete`` or ``found`` for a successful wait; ``finished`` if it is no longer needed;
        ``missed`` if it can no longer succeed; ``timeout``
    :param reason: one sentence
    :param path: path of the complete checkpoint
    :param line: the matching line
    :param carry: data of the task that the trigger returns unchanged
    """

    status: str
    reason: str | None = None
    path: str | None = None
    line: str | None = None
    carry: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WaitEvent:
        """Parse the output of :meth:`to_json`; unknown keys are ignored."""
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
        """Whether the wait ended without a result."""
        return self.status == "timeout"
