"""The lock that keeps a second local Airflow away from a home, and so from its SQLite database."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOCK_FILE: Final = "running"


class HomeLock:
    """An exclusive lock of a folder; it lasts until all processes that have its descriptor have ended or closed it.

    :param home: an existing folder
    """

    def __init__(self, home: Path) -> None:
        self._path = home / LOCK_FILE
        self._file: int | None = None

    def take(self) -> str | None:
        """Take the lock, unless this object has it already.

        :return: None, or the description of the process that has the lock
        """
        if self._file is not None:
            return None
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(file, "rb") as other:
                return other.read(200).decode(errors="replace").strip() or "unknown process"
        except OSError:  # the file system has no locks
            os.close(file)
            return None
        self._file = file
        return None

    def describe(self, text: str) -> None:
        """Write how another user of the folder finds the process that has the lock."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{text}\n".encode(), 0)

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptor for a child process that shall have the lock too; empty without a lock."""
        return [] if self._file is None else [self._file]

    def release(self) -> None:
        """Give up the lock; children that have its descriptor keep it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
