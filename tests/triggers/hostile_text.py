"""Texts that make a regular expression slow: repetitions of the beginning of a match."""

from __future__ import annotations

import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from typing import Any

_CATEGORIES = {
    codes.CATEGORY_DIGIT: "1",
    codes.CATEGORY_NOT_DIGIT: "x",
    codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_NOT_SPACE: "x",
    codes.CATEGORY_WORD: "a",
    codes.CATEGORY_NOT_WORD: "-",
}
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_ANY_OF = "xX1 a-.|:=/[]()\"'"


def attacks(pattern: str | bytes) -> list[bytes]:
    """Return texts to be repeated: a match of the pattern, cut off after each of its repeated parts.

    A matcher that tries every position and scans the rest from each needs quadratic time.
    """
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    found: dict[bytes, None] = {}
    for branch in _branches(list(parser.parse(text))):
        before = ""
        for item in branch:
            sample = _sample([item])
            before += sample
            if item[0] in _REPEATS or item is branch[-1]:
                found.setdefault(before.encode("latin-1", "replace"))
    return [unit for unit in found if unit.strip()]


def _branches(items: list[Any]) -> list[list[Any]]:
    """Return the top-level alternatives of a pattern as separate patterns."""
    if len(items) == 1:
        kind, value = items[0]
        if kind is codes.BRANCH:
            return [branch for part in value[1] for branch in _branches(list(part))]
        if kind is codes.SUBPATTERN:
            return _branches(list(value[-1]))
    return [items]


def _sample(items: list[Any]) -> str:
    """Return a text that matches."""
    return "".join(_of(kind, value) for kind, value in items)


def _of(kind: Any, value: Any) -> str:
    match kind:
        case codes.LITERAL:
            return chr(value)
        case codes.NOT_LITERAL:
            return "x" if value != ord("x") else "y"
        case codes.ANY:
            return "x"
        case codes.IN:
            return _of_set(value)
        case codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT:
            least, most, part = value
            return _sample(list(part)) * min(max(least, 1), most)
        case codes.SUBPATTERN:
            return _sample(list(value[-1]))
        case codes.ATOMIC_GROUP:
            return _sample(list(value))
        case codes.BRANCH:
            return _sample(list(value[1][0]))
        case _:  # anchors, look-around, references
            return ""


def _of_set(parts: list[Any]) -> str:
    if parts[0][0] is codes.NEGATE:
        refused = "".join(_member(kind, value) for kind, value in parts[1:])
        return next(character for character in _ANY_OF if character not in refused)
    return _member(*parts[0])


def _member(kind: Any, value: Any) -> str:
    match kind:
        case codes.LITERAL:
            return chr(value)
        case codes.RANGE:
            return chr(value[0])
        case _:
            return _CATEGORIES[value]
