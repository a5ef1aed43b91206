"""Restrict the files of the local services to their owner."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = 0o077
"""Permission bits of the group and of others."""


def keep_new_files_private() -> None:
    """Set the umask so that this process and its children create files only for their owner."""
    os.umask(OTHERS)


def make_private(folder: Path) -> None:
    """Create a folder, or remove the permissions of others from it and its direct entries.

    Earlier versions may have left readable files: generated passwords, the database, the log. Links are not
    followed, and files of other users are not changed.

    :raises PermissionError: if the folder belongs to another user
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~OTHERS)
    for path in folder.iterdir():
        found = path.lstat()
        regular = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        if regular and found.st_uid == os.geteuid() and found.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
