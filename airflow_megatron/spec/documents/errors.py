"""Errors of sweep specs and cluster profiles: each names the file, the line and the hint."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.trust.plain_text import LONGEST_LINE, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


MOST_PROBLEMS: Final = 500
"""Maximum number of problems of one error: a file may have a mistake in each of its lines."""
MOST_COMPARISONS: Final = 200_000
"""Maximum number of names that the hints of one spec compare with wrong ones, about two seconds of processor time."""


@dataclass(frozen=True, order=True)
class Problem:
    """One problem of a document.

    :param file: path of the document as given by the user
    :param line: 1-based line, or 0 if the problem has no line
    :param column: 1-based column, or 0
    :param message: the problem
    :param hint: what to write instead; empty if the message is sufficient
    """

    file: str
    line: int
    column: int
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """Render as ``file:line:column: message (hint)``, the form that editors recognise."""
        return f"{self._place}: {self._text}"

    def with_severity(self, severity: str) -> str:
        """Render as ``file:line:column: warning: message (hint)``, as compilers do."""
        return f"{self._place}: {severity}: {self._text}"

    @property
    def _place(self) -> str:
        return ":".join(str(part) for part in (shown(self.file), self.line, self.column) if part)

    @property
    def _text(self) -> str:
        """One line for terminals and pages: values of a spec may hold line breaks, escape sequences, or megabytes."""
        message, hint = (shown(_cut(part)) for part in (self.message, self.hint))
        return f"{message} ({hint})" if hint else message


def _cut(text: str) -> str:
    left_out = len(text) - LONGEST_LINE
    if left_out <= 0:
        return text
    # the value is in the middle, as a rule, and what is wrong with it at the end
    end = LONGEST_LINE // 4
    return f"{text[: LONGEST_LINE - end]} … ({left_out} more characters) … {text[-end:]}"


class SpecError(AirflowMegatronError, ValueError):
    """An invalid document, with every problem found, not only the first; of many, with the first ones.

    :param problems: the problems, at least one
    """

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        found = [problems] if isinstance(problems, Problem) else sorted(set(problems))
        if len(found) > MOST_PROBLEMS:
            del found[MOST_PROBLEMS:]
            more = f"there are more than {MOST_PROBLEMS} errors; the others are not shown"
            found.append(Problem(found[-1].file, 0, 0, more, "correct those above first"))
        self.problems: tuple[Problem, ...] = tuple(found)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class _Hints:
    """The names that the hints of the current spec of this process have compared."""

    comparisons = 0


def begin_hints() -> None:
    """Reset the count of comparisons for another spec."""
    _Hints.comparisons = 0


def near_names(word: str, known: Iterable[str], *, limit: int = 3, alike: float = 0.6) -> list[str]:
    """Return the known names that look like a word, best first.

    Names that differ from it only in separators and capitals come alone. Where none looks like it, those that do in
    small letters. A spec with very many wrong names gets no more of them.

    :param word: the written word
    :param known: the known names
    :param limit: maximum number of names
    :param alike: minimum similarity, 0 to 1 (``difflib.SequenceMatcher.ratio``)
    """
    if _Hints.comparisons > MOST_COMPARISONS:
        return []
    names = [str(name) for name in known]
    _Hints.comparisons += len(names)
    plain = _plain(word)
    if same := [name for name in names if name != word and _plain(name) == plain]:
        return same[:limit]
    letters = frozenset(word.lower())
    names = [name for name in names if _may_resemble(word, letters, name, alike)]
    if not names:
        return []
    if found := difflib.get_close_matches(word, names, n=limit, cutoff=alike):
        return found
    lowered = {name.lower(): name for name in names}
    found = difflib.get_close_matches(word.lower(), lowered, n=limit, cutoff=alike)
    return [lowered[name] for name in found]


def _may_resemble(word: str, letters: frozenset[str], name: str, alike: float) -> bool:
    """Return whether lengths and letters allow the similarity: a bound of ``SequenceMatcher.ratio``, without a matcher.

    :param letters: those of the word, in lower case
    """
    both, shorter = len(word) + len(name), min(len(word), len(name))
    if not both or 2 * shorter / both < alike:
        return not both
    others = {*name.lower()}
    equal = min(shorter, len(word) - len(letters - others), len(name) - len(others - letters))
    return 2 * equal / both >= alike


def longer_names(word: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """Return the known names of which a word is the beginning or the end: ``gpus`` of ``gpus_per_node``.

    :param limit: maximum number of names; none are returned if there are more
    """
    part = _plain(word).strip("_")
    names = [f"_{name}_" for name in known if part]
    found = [name for name in names if name.startswith(f"_{part}_") or name.endswith(f"_{part}_")]
    return [name[1:-1] for name in found] if len(found) <= limit else []


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")


def suggestion(names: Iterable[str]) -> str:
    """Return ``did you mean x or y?`` for names in their final form, an empty string for none."""
    text = " or ".join(names)
    return f"did you mean {text}?" if text else ""


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3, alike: float = 0.6) -> str:
    """Return ``did you mean 'x'?`` for :func:`near_names`, an empty string if there are none."""
    return suggestion(map(repr, near_names(word, known, limit=limit, alike=alike)))
