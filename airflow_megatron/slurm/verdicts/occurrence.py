"""Occurrences: events, health alarms and fulfilled conditions of a job, with the action that its spec requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.trust.json_records import whole, word

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Occurrence:
    """An event of a job, a health alarm, or a fulfilled condition of the job.

    :param do: the requested action, as for events (``notify``, ``run``, ``restart`` …)
    :param reason: one sentence for logs, notices and verdicts
    :param on: source of an event: ``log``, ``state`` or ``idle``; None for alarms and conditions
    :param command: shell text for ``run``
    :param groups: named groups of the line that matched
    :param before_iteration: for a rollback, the first iteration that may be affected; None if the line's group
        ``iteration`` gives it
    :param permanent: whether the next attempt would fail in the same way
    :param detector: of a health alarm, its detector
    """

    do: str
    reason: str
    on: str | None = None
    command: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    before_iteration: int | None = None
    permanent: bool = False
    detector: str = ""

    @property
    def rolls_back_before(self) -> int | None:
        """The first affected iteration: a rollback loads an earlier checkpoint. None for the newest checkpoint."""
        if self.do != "rollback":
            return None
        return (
            self.before_iteration
            if self.before_iteration is not None
            else whole(self.groups.get("iteration"))
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Occurrence:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored.

        :raises ValueError: if the action is missing
        """
        do, groups = word(value.get("do")), value.get("groups")
        if do is None:
            raise ValueError(f"the occurrence in a job has no action: {dict(value)}")
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
            detector=word(value.get("detector")) or "",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, without fields that are not set."""
        value: dict[str, Any] = {"do": self.do, "reason": self.reason}
        if self.on is not None:
            value |= {"on": self.on, "command": self.command, "groups": dict(self.groups)}
        if self.before_iteration is not None:
            value["before_iteration"] = self.before_iteration
        if self.permanent:
            value["permanent"] = True
        if self.detector:
            value["detector"] = self.detector
        return value
