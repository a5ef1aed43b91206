"""Find the script of an upstream checkout in a command line, after the starters of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STARTERS = Path(__file__).resolve().parents[1]


def upstream_script(words: Sequence[str]) -> Path:
    """Return the first argument that is not a program of this project; an empty path if there is none.

    :param words: the command line of a starter, without the starter's name.
    """
    paths = map(Path, words)
    return next((path for path in paths if path.resolve().parent != _STARTERS), Path())
