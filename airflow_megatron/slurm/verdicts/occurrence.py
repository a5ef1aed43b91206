"""What showed in a job, and what its spec wants done about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.trust.json_records import whole, word

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Occurrence:
    """An event of a job, an alarm of its health, or a condition of its own that holds.

    :param do: what is to be done: an action of an event (``notify``, ``run``, ``restart`` …)
    :param reason: one sentence for logs, notices and verdicts
    :param on: of an event its source: ``log``, ``state`` or ``idle``; None for everything else
    :param command: shell text for ``run``
    :param groups: named groups of the line that matched
    :param before_iteration: of a rollback the first iteration that may be affected, None where the line's group
        ``iteration`` names it
    :param permanent: the next attempt would end in the same way
    """

    do: str
    reason: str
    on: str | None = None
    command: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    before_iteration: int | None = None
    permanent: bool = False

    @property
    def rolls_back_before(self) -> int | None:
        """The iteration before which a rollback goes back to, None for the newest checkpoint."""
        if self.do != "rollback":
            return None
        return (
            self.before_iteration
            if self.before_iteration is not None
            else whole(self.groups.get("iteration"))
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Occurrence:
        """Return what :meth:`to_json` wrote, of this version or an earlier one; unknown keys are passed over.

        :raises ValueError: when it does not name what is to be done
        """
        do, groups = word(value.get("do")), value.get("groups")
        if do is None:
            raise ValueError(f"what showed in a job does not name what is to be done: {dict(value)}")
        return cls(
            do=do,
            reason=str(value.get("reason") or ""),
            on=word(value.get("on")),
            command=word(value.get("command")) or "",
            groups={str(name): str(text) for name, text in groups.items()}
            if isinstance(groups, dict)
            else {},
            before_iteration=whole(value.get("before_iteration")),
            permanent=value.get("permanent") is True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; what is not set is left out."""
        value: dict[str, Any] = {"do": self.do, "reason": self.reason}
        if self.on is not None:
            value |= {"on": self.on, "command": self.command, "groups": dict(self.groups)}
        if self.before_iteration is not None:
            value["before_iteration"] = self.before_iteration
        if self.permanent:
            value["permanent"] = True
        return value
