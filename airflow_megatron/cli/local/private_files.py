"""Keeping the files of the local services from other users of the machine."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = 0o077
"""Permissions of the group and of everybody."""


def keep_new_files_private() -> None:
    """Let this process and those that it starts make files and folders for their owner alone."""
    os.umask(OTHERS)


def make_private(folder: Path) -> None:
    """Make a folder, or close it to others together with what lies directly in it.

    What earlier versions have left there may be open: generated passwords, the database, the log. Links are not
    followed, and what belongs to somebody else stays as it is.

    :raises PermissionError: when the folder is another user's
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
