"""Append notices to files below one folder that the operator chooses."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.project import local_dir

SETTING: Final = "AIRFLOW_MEGATRON_NOTICES"
"""Environment variable with the folder; default: ``notices/`` in the folder of this machine's state."""
MAX_PARTS: Final = 8
MAX_LINE: Final = 1_000_000
"""Maximum length of a line in bytes."""


class NoticePathError(AirflowMegatronError, ValueError):
    """A path is not allowed for notices, or a notice is too long."""


def notices_dir() -> Path:
    """Return the folder for all files of notices."""
    named = os.environ.get(SETTING)
    return Path(named).expanduser().absolute() if named else local_dir() / "notices"


def notice_path_parts(path: str) -> tuple[str, ...]:
    """Return the parts of a path relative to the folder; an absolute path must be below it.

    :raises NoticePathError: if it leads out of the folder or is not the path of a file
    """
    if not path.isprintable():
        raise NoticePathError("a path holds no control characters")
    if path.startswith("~"):
        raise NoticePathError("a path does not begin with '~'")
    folder = str(notices_dir())
    if path.startswith("/"):
        if not path.startswith(f"{folder}/"):
            raise NoticePathError(f"notices are written below {folder} only")
        path = path.removeprefix(f"{folder}/")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise NoticePathError("a path holds no '..'")
    if not parts or path.endswith("/") or len(parts) > MAX_PARTS or any(len(part) > 200 for part in parts):
        raise NoticePathError(f"a path names a file, in at most {MAX_PARTS - 1} folders")
    if any(part.startswith(".") for part in parts):
        raise NoticePathError("no part of a path begins with '.'")
    return parts


def append_line(path: str, line: str) -> None:
    """Append a line to a file below the folder; create missing folders and the file, accessible only to the owner.

    A line is written in one call, so that lines of concurrent tasks do not mix (POSIX: ``O_APPEND``). No link in the
    path is followed.

    :raises NoticePathError: if the path leads out of the folder, contains a link, or is not that of a file
    :raises OSError: if it cannot be written
    """
    parts = notice_path_parts(path)
    content = line.encode(errors="replace")
    if len(content) > MAX_LINE:
        raise NoticePathError(f"a notice of {len(content)} bytes is not written: {MAX_LINE} at most")
    folder = notices_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=current)
            below = _opened(part, os.O_RDONLY | os.O_DIRECTORY, current)
            os.close(current)
            current = below
        # opening a pipe without a reader would block
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        file = _opened(parts[-1], flags, current)
    finally:
        os.close(current)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise NoticePathError(f"{path} is not a regular file with a single link")
        os.write(file, content + b"\n")
    finally:
        os.close(file)


def _opened(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):  # the error of O_NOFOLLOW for a link
            raise NoticePathError(f"{name} is a link or no folder, and notices follow none") from error
        raise
