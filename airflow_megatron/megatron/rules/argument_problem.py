"""Problem of a command line: one rule that it breaks."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """One reason why a release refuses a command line.

    :param rule: short, stable name of the rule
    :param message: what is wrong, with the values that break the rule
    :param hint: the nearest values that would be taken, or what else to change
    :param source: where upstream refuses it: file and function
    """

    rule: str
    message: str
    hint: str
    source: str

    def to_json(self) -> dict[str, str]:
        """Write the problem as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint}) [{self.rule}; {self.source}]"
