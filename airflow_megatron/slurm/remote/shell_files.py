"""The fixed part of the remote scripts: the ``.sh`` files of this package."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_DIRECTORY = Path(__file__).parent / "shell"


@cache
def shell_file(name: str) -> str:
    """Return the text of ``shell/<name>.sh`` without its leading comment on who reads it.

    :param name: file name without ending.
    """
    text = (_DIRECTORY / f"{name}.sh").read_text(encoding="utf-8")
    return text.partition("\n\n")[2].strip("\n")
