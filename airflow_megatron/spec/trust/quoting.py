"""Quoting of values for shell scripts."""

from __future__ import annotations

import shlex

from airflow_megatron.errors import AirflowMegatronError


class QuotingError(AirflowMegatronError, ValueError):
    """A value cannot be passed to the cluster unchanged."""


def quote(value: str) -> str:
    """Return *value* as one word of a POSIX shell.

    :raises QuotingError: as :func:`checked_text`.
    """
    return shlex.quote(checked_text(value))


def checked_text(value: str) -> str:
    """Return *value* if a script can hold it.

    :param value: any text without NUL, which a shell word cannot contain, and lone surrogates, which UTF-8 cannot
        encode.
    :raises QuotingError: for other text.
    """
    if "\0" in value:
        raise QuotingError(f"{value!r} holds a NUL character, which no shell can pass on; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise QuotingError(f"{value!r} is not valid Unicode text; spell it in UTF-8") from None
    return value


def checked_path(path: str) -> str:
    """Return *path* if it is an absolute path without control characters, in valid Unicode.

    :raises QuotingError: if it is not.
    """
    if not path.startswith("/"):
        raise QuotingError(f"remote path {path!r} is not absolute; start it with '/'")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise QuotingError(f"remote path {path!r} holds a control character (newline, tab …); rename it")
    return checked_text(path)
