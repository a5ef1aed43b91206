"""Values that an earlier job of the sweep writes, read when the job that needs them starts.

Its placeholder is ``@file:<absolute path>``, as an argument's value and in a command's words. The job script replaces
it with the file's first line, and fails if the file does not exist.
"""

from __future__ import annotations

from typing import Final

FILE_PREFIX: Final = "@file:"


def file_value(path: str) -> str:
    """Return the placeholder for the content of a file on the cluster.

    :param path: absolute path of a file whose first line is the value
    :raises ValueError: if the path is not absolute
    """
    if not str(path).startswith("/"):
        raise ValueError(f"the path {path!r} is not absolute; begin it with a stage's run_dir")
    return f"{FILE_PREFIX}{path}"


def path_of(value: object) -> str | None:
    """Return the path in a placeholder, None for any other value."""
    return (
        value.removeprefix(FILE_PREFIX) if isinstance(value, str) and value.startswith(FILE_PREFIX) else None
    )
