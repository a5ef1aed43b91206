"""The commit of a checkout, read without running git."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40,64}\Z")
_LONGEST = 1 << 20


def commit_of(folder: Path) -> str:
    """Return the commit of the checkout that contains a folder, empty if there is none.

    Uncommitted changes are ignored.
    """
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if git.exists():
            try:
                return _commit(git)
            except (OSError, UnicodeDecodeError):
                return ""
    return ""


def _commit(git: Path) -> str:
    if git.is_file():  # a work tree of another checkout: "gitdir: PATH"
        git = git.parent / _text(git).removeprefix("gitdir:").strip()
    head = _text(git / "HEAD")
    if not head.startswith("ref:"):
        return head if _COMMIT.match(head) else ""
    name = head.removeprefix("ref:").strip()
    shared = git / _text(git / "commondir") if (git / "commondir").is_file() else git
    for place in (git, shared):
        if (place / name).is_file():
            found = _text(place / name)
            return found if _COMMIT.match(found) else ""
    packed = shared / "packed-refs"
    for line in _text(packed).splitlines() if packed.is_file() else ():
        commit, _, ref = line.partition(" ")
        if ref == name and _COMMIT.match(commit):
            return commit
    return ""


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_LONGEST).strip()
