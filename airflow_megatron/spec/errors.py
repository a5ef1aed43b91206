"""Errors of sweep specs and cluster profiles: each names the file, the line and the mend."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong in a document.

    :param file: path of the document as the user gave it
    :param line: 1-based line, or 0 when the problem has no line
    :param column: 1-based column, or 0
    :param message: what is wrong
    :param mend: what to write instead; empty when the message says it all
    """

    file: str
    line: int
    column: int
    message: str
    mend: str = ""

    def __str__(self) -> str:
        """Render as ``file:line:column: message (mend)``, the form that editors jump to."""
        return f"{self._place}: {self._text}"

    def with_severity(self, severity: str) -> str:
        """Render as ``file:line:column: warning: message (mend)``, as compilers do."""
        return f"{self._place}: {severity}: {self._text}"

    @property
    def _place(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)

    @property
    def _text(self) -> str:
        return self.message + (f" ({self.mend})" if self.mend else "")


class SpecError(ValueError):
    """A document that cannot be used; carries every problem found, not only the first.

    :param problems: what is wrong, at least one
    """

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(sorted(set(problems)))
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3) -> str:
    """Return ``did you mean "x"?`` for the known words nearest to ``word``, or an empty string."""
    near = difflib.get_close_matches(word, [str(name) for name in known], n=limit, cutoff=0.6)
    return f"did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
