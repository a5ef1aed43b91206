"""Escape text of jobs for terminals, pages and logs, so that it cannot move the cursor or hide other text."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

LONGEST_LINE: Final = 2000

# ECMA-48: control sequences (colours, cursor), operating-system commands (titles, links), other escapes
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


def harmless(raw: bytes) -> str:
    """Return a line of a log as text that cannot move a terminal's cursor, hide or reorder its sidecar.

    Of a progress bar that rewrites its line the last state is kept, colours are dropped, and any other control or
    format character (bidirectional overrides among them) is shown as its escape.

    :param raw: the line, in whatever encoding; bytes that are not UTF-8 become U+FFFD
    """
    text = raw.decode("utf-8", "replace").rstrip()
    text = _ESCAPE_SEQUENCE.sub("", text.rpartition("\r")[2]).replace("\t", "    ")
    left_out = len(text) - LONGEST_LINE
    return shown(text) if left_out <= 0 else f"{shown(text[:LONGEST_LINE])} … ({left_out} more characters)"


def shown(text: str) -> str:
    """Return a text with its control and format characters as escapes: a file's name, a word of Slurm's."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")
