"""Problem of a command line: a violated rule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FLAG: Final = re.compile(r"(?<![\w-])--([a-z][\w-]*)")


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """One reason why a release refuses a command line.

    :param rule: short, stable name of the rule
    :param message: what is wrong, with the values that break the rule
    :param hint: the nearest values that would be taken, or what else to change
    :param source: where upstream refuses it: file and function
    :param shown: settings whose values the message shows, by ``dest``
    :param read: settings that the rule has read, by ``dest``
    """

    rule: str
    message: str
    hint: str
    source: str
    shown: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    @property
    def suspects(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What may cause it, in two groups: settings that the message names, and others that the rule has read."""
        return (*named_arguments(self.message), *self.shown), self.read

    def to_json(self) -> dict[str, str]:
        """Write the problem as a JSON object."""
        return {name: getattr(self, name) for name in ("rule", "message", "hint", "source")}

    def __str__(self) -> str:
        return f"{self.message} ({self.hint}) [{self.rule}; {self.source}]"


def named_arguments(message: str) -> tuple[str, ...]:
    """Return the arguments whose flags a message names, with underscores, in its order."""
    return tuple(dict.fromkeys(flag.replace("-", "_") for flag in _FLAG.findall(message)))
