"""Conditions on the state of a cluster, and events of a running job, resolved to plain values.

This module defines them; :mod:`airflow_megatron.supervision.condition_watch` evaluates them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from airflow_megatron.spec.layout.run_layout import StageDir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ConditionKind = Literal[
    "finished",
    "ended",
    "checkpoint",
    "new_checkpoint",
    "log",
    "file",
    "command",
    "all",
    "any",
    "not",
]
EventSource = Literal["log", "state", "idle"]
EventAction = Literal["cancel", "restart", "rollback", "finish", "fail", "run", "notify"]


class Condition(msgspec.Struct, frozen=True):
    """A condition on the state of a cluster.

    :param kind: ``finished``/``ended``: another job's verdict; ``checkpoint``: a complete checkpoint of exactly
        ``iteration``; ``new_checkpoint``: a complete checkpoint that is not processed yet; ``log``: a line that
        matches ``pattern``; ``file``: a file or glob exists; ``command``: a command's answer; ``all``/``any``/``not``
        of ``parts``
    :param path: stage directory of the other job (finished, ended), checkpoint directory, log (with ``{attempt}`` for
        the attempt's number), file or glob
    :param iteration: iteration of the checkpoint; for ``new_checkpoint`` the first selected one
    :param spacing: ``new_checkpoint``: minimum number of iterations between two selected ones
    :param last: ``new_checkpoint``: an iteration that is selected regardless of the spacing
    :param producer: ``checkpoint``, ``log``: stage directory of the job that writes it; when that job has ended
        without it, the condition can no longer hold. ``file``: stage directory of the job that writes it, empty for
        other files
    :param done: ``new_checkpoint``: path of the marker of a processed checkpoint, with ``{iteration}`` in it
    :param pattern: regular expression
    :param command: shell text for the login node
    :param directory: working directory of ``command``, if it exists
    :param prints: the expected output, stripped; None: exit code 0 is expected
    :param parts: parts of ``all``, ``any``, ``not``
    """

    kind: ConditionKind
    path: str = ""
    iteration: int | None = None
    spacing: int = 1
    last: int | None = None
    producer: str = ""
    done: str = ""
    pattern: str = ""
    command: str = ""
    directory: str = ""
    prints: str | None = None
    parts: tuple[Condition, ...] = ()

    def leaves(self) -> Iterator[Condition]:
        """Yield the conditions without parts, left to right."""
        if self.kind in ("all", "any", "not"):
            for part in self.parts:
                yield from part.leaves()
        else:
            yield self

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data without the fields that have their default."""
        values = msgspec.structs.asdict(self)
        data = {name: value for name, value in values.items() if name == "kind" or value != _DEFAULTS[name]}
        if self.parts:
            data["parts"] = [part.to_json() for part in self.parts]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Condition:
        """Parse the output of :meth:`to_json`."""
        return cls(**{**data, "parts": tuple(cls.from_json(part) for part in data.get("parts", ()))})

    def __str__(self) -> str:
        return self.text()

    def text(self, stage_dir: str | None = None) -> str:
        """Return it in words.

        :param stage_dir: stage directory of its job: logs and checkpoints of other jobs get the names of their stages;
            None: no names
        """
        of = ""
        if stage_dir and self.producer and self.producer != stage_dir:
            of = f" of {StageDir(self.producer).stage}"
        match self.kind:
            case "finished" | "ended":
                stage = StageDir(self.path).stage
                return f"{stage} {self.kind}"
            case "checkpoint":
                return f"checkpoint {self.iteration}{of}"
            case "new_checkpoint":
                return f"new checkpoint from iteration {self.iteration or 0}"
            case "log":
                return f"log {self.pattern}{of}"
            case "file":
                return f"file {self.path}"
            case "command":
                return f"command {self.command}"
            case "not":
                return f"not ({self.parts[0].text(stage_dir)})"
            case _:
                word = " and " if self.kind == "all" else " or "
                texts = ((part.text(stage_dir), part.parts) for part in self.parts)
                return word.join(f"({text})" if parts else text for text, parts in texts)


_DEFAULTS = dict(zip(Condition.__struct_fields__[1:], Condition.__struct_defaults__, strict=True))


class Event(msgspec.Struct, frozen=True):
    """An event of a running job, and the reaction to it.

    :param name: name for messages
    :param on: ``log``: a line matches ``pattern``; ``state``: Slurm's state matches ``pattern``; ``idle``: ``after``
        seconds without a new iteration or log line
    :param do: ``cancel`` the job for good, ``restart`` it in a new attempt, ``rollback`` to an earlier checkpoint (from
        before the iteration in a group ``iteration`` of the match), count it as ``finish``-ed or ``fail``-ed, ``run`` a
        command on the login node, ``notify``
    :param pattern: regular expression
    :param after: seconds
    :param condition: condition that must also hold
    :param command: shell text of ``run``; groups of the match are ``$am_match_<name>``
    :param message: text of ``notify``
    :param limit: maximum number of reactions in one attempt; None for no limit
    """

    name: str
    on: EventSource
    do: EventAction
    pattern: str = ""
    after: float | None = None
    condition: Condition | None = None
    command: str = ""
    message: str = ""
    limit: int | None = 1

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data = msgspec.structs.asdict(self)
        data["condition"] = self.condition.to_json() if self.condition else None
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """Parse the output of :meth:`to_json`."""
        condition = data.get("condition")
        return cls(**{**data, "condition": Condition.from_json(condition) if condition else None})
