"""Values that an earlier job of the sweep writes, read when the job that needs them starts.

Its placeholder is ``@file:<absolute path>``, as an argument's value and in a command's words. The job script replaces
it with the file's first line, and fails if the file does not exist. Expressions cannot compute with it.
"""

from __future__ import annotations

from typing import Final

from airflow_megatron.errors import AirflowMegatronError

FILE_PREFIX: Final = "@file:"
_BEGINNING: Final = f"{FILE_PREFIX}/"
_LATER: Final = "the value of file_value is known only when the job starts"


class FileValueError(AirflowMegatronError, ValueError):
    """An expression uses a value that is known only when the job starts as if it were known now."""


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


def refuse_file_values(*values: object) -> None:
    """Refuse placeholders among the operands of an operation, those inside lists and mappings included.

    :raises FileValueError: for the first one
    """
    if any(map(_holds_one, values)):
        raise FileValueError(f"{_LATER}, so it must be the whole value")


def refuse_whole_file_values(*values: object) -> None:
    """Refuse operands that are placeholders; lists and mappings may hold them.

    :raises FileValueError: for the first one
    """
    if any(isinstance(value, str) and value.startswith(_BEGINNING) for value in values):
        refuse_file_values(*values)


def refuse_result(value: object) -> None:
    """Refuse the result of an expression that is needed before the job starts.

    :raises FileValueError: if it is, or holds, a placeholder
    """
    if _holds_one(value):
        raise FileValueError(
            f"{_LATER}, so only Megatron arguments and words of command can be read from files"
        )


def _holds_one(value: object) -> bool:
    if isinstance(value, str):
        return value.startswith(_BEGINNING)
    if isinstance(value, list | tuple):
        return any(map(_holds_one, value))
    return isinstance(value, dict) and any(map(_holds_one, (*value, *value.values())))
