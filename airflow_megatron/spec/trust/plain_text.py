"""Text of jobs and specs for terminals, pages, logs and databases: it moves no cursor and hides no other text."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any, Final

LONGEST_LINE: Final = 2000
_LONGEST_VALUE: Final = 200
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")

# ECMA-48: control sequences (colours, cursor), operating-system commands (titles, links), other escapes
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


def harmless(raw: bytes) -> str:
    """Return a line of a log as text that cannot move a terminal's cursor, or hide or reorder other text.

    For a progress bar that rewrites its line, the last state is kept. Colours are removed, and any other control or
    format character (including bidirectional overrides) is shown as its escape.

    :param raw: the line, in any encoding; bytes that are not UTF-8 become U+FFFD
    """
    text = raw.decode("utf-8", "replace").rstrip()
    text = _ESCAPE_SEQUENCE.sub("", text.rpartition("\r")[2]).replace("\t", "    ")
    left_out = len(text) - LONGEST_LINE
    return shown(text) if left_out <= 0 else f"{shown(text[:LONGEST_LINE])} … ({left_out} more characters)"


def shown(text: str) -> str:
    """Return a text, such as a file name or a word from Slurm, with control and format characters as escapes."""
    return text if text.isprintable() else "".join(map(_shown, text))


def shown_value(value: object) -> str:
    """Return a value of a spec as messages quote it: short, whatever it is."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()  # as in YAML
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # int() of so many digits is not allowed to become text
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def storable(value: Any) -> Any:
    """Return JSON data that PostgreSQL accepts: NUL and lone surrogates as escapes, None for NaN and infinity.

    Otherwise the data of one job would end the process of Airflow that stores the data of all jobs.
    """
    if isinstance(value, str):
        return _UNSTORABLE.sub(lambda found: _shown(found[0]), value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list | tuple) else value


def without_images(text: str) -> str:
    """Return Markdown that loads nothing by itself: Airflow's page would send the requests of images as the viewer."""
    return text.replace("![", "!\\[")


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")
