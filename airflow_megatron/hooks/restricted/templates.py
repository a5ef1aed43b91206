"""Templates of remote scripts, and the extraction of the values from a script."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Final

Node = Any
"""A text, ``{"word": KIND}``, ``{"document": KIND}``, or ``{"times": "*" or "?", "nodes": [Node…]}``."""

_WORD: Final = re.compile(r"""(?:'[^']*'|"'"|[A-Za-z0-9@%+=:,./_-])*""")
_DOCUMENT: Final = re.compile(r"<<'([A-Za-z]M_[0-9a-f]{16})'\n(.*?\n)\1\n", re.DOTALL)
_MARK: Final = re.compile("(\x01[^\x01-\x03]*\x01|\x02[*?]|\x03)")


def word(kind: str) -> str:
    """Return the place of a quoted word; *kind* is a check of ``dispatcher.Checks``."""
    return f"\x01word {kind}\x01"


def document(kind: str) -> str:
    """Return the place of a here-document."""
    return f"\x01document {kind}\x01"


def many(text: str) -> str:
    """Return a part that occurs any number of times."""
    return f"\x02*{text}\x03"


def maybe(text: str) -> str:
    """Return a part that occurs once or not at all."""
    return f"\x02?{text}\x03"


def words(kind: str) -> str:
    """Return the place of quoted words with blanks between them."""
    return maybe(word(kind)) + many(" " + word(kind))


def nodes(text: str) -> list[Node]:
    """Return the parts of a text with places."""
    open_parts: list[list[Node]] = [[]]
    for piece in _MARK.split(text):
        if piece.startswith("\x01"):
            syntax, _, kind = piece.strip("\x01").partition(" ")
            open_parts[-1].append({syntax: kind})
        elif piece.startswith("\x02"):
            inner: list[Node] = []
            open_parts[-1].append({"times": piece[1], "nodes": inner})
            open_parts.append(inner)
        elif piece == "\x03":
            open_parts.pop()
        elif piece:
            open_parts[-1].append(piece)
    return open_parts[0]


def values_of(template: list[Node], script: str) -> list[Any] | None:
    """Return the values with which *template* renders *script*; None if there are none."""
    read = _read(template, script, 0)
    return read[0] if read is not None and read[1] == len(script) else None


def _read(template: list[Node], script: str, at: int) -> tuple[list[Any], int] | None:
    values: list[Any] = []
    for index, node in enumerate(template):
        if isinstance(node, str):
            if not script.startswith(node, at):
                return None
            at += len(node)
        elif "word" in node:
            found = _WORD.match(script, at)
            assert found is not None, "it matches nothing, too"
            if not found[0] and node["word"] != "path-or-none":
                return None
            end = found.end()
            following = template[index + 1] if index + 1 < len(template) else ""
            if isinstance(following, str):  # "/name" after a word is not part of a word
                while end > at and not script.startswith(following, end):
                    end -= 1
            try:
                values.append("".join(shlex.split(script[at:end])))
            except ValueError:  # it ends within quotes
                return None
            at = end
        elif "document" in node:
            found = _DOCUMENT.match(script, at)
            if found is None:
                return None
            values.append(found[2])
            at = found.end()
        else:
            part: list[Any] = []
            while (once := _read(node["nodes"], script, at)) is not None and once[1] > at:
                part.append(once[0])
                at = once[1]
                if node["times"] == "?":
                    break
            values.append(part)
    return values, at


def canonical(value: Any) -> bytes:
    """Return canonical JSON: equal values have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
