"""Directories that a pattern matches, each with a unique name."""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path

MAX_NAME_BYTES = 200
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f{}\ud800-\udfff]")
_ESCAPED = re.compile(r"\[[*?[]\]")
_PLACE = re.compile(r"\{(run|directory)\}")


@dataclass(frozen=True)
class MatchedRun:
    """One directory.

    :param name: the parts of the path that match wildcards, joined by ``_``
    :param directory: its path
    """

    name: str
    directory: str

    def filled(self, text: str) -> str:
        """Return a text with ``{run}`` and ``{directory}`` replaced."""
        values = {"run": self.name, "directory": self.directory}
        return _PLACE.sub(lambda place: values[place[1]], text)


def matched_runs(pattern: str) -> tuple[list[MatchedRun], list[str]]:
    """Return the directories that a pattern matches, by name, and the problems of those that cannot be used.

    :param pattern: absolute, with ``*``, ``?`` and ``[…]``; hidden directories are not matched by ``*``
    """
    wild = [at for at, part in enumerate(pattern.split("/")) if glob.has_magic(_ESCAPED.sub("", part))]
    runs: dict[str, MatchedRun] = {}
    wrong: list[str] = []
    for directory in sorted(glob.glob(pattern)):  # noqa: PTH207 (that of a Path matches hidden ones)
        if not Path(directory).is_dir():
            continue
        parts = directory.split("/")
        name = "_".join(parts[at] for at in wild)
        if _UNUSABLE.search(directory):
            wrong.append(
                f"{directory!a} has a control character, a brace or a byte that is not UTF-8 in its name"
            )
        elif len(name.encode()) > MAX_NAME_BYTES:
            wrong.append(f"{directory!a} would be named with more than {MAX_NAME_BYTES} bytes")
        elif name in runs:
            wrong.append(f"{directory!a} and {runs[name].directory!a} would both be named {name!a}")
        else:
            runs[name] = MatchedRun(name, directory)
    return list(runs.values()), wrong
