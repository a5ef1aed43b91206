"""The one way a value enters a shell script."""

from __future__ import annotations

import shlex

from airflow_megatron.errors import AirflowMegatronError


class QuotingError(AirflowMegatronError, ValueError):
    """A value that cannot be passed to the cluster unharmed."""


def quote(value: str) -> str:
    """Return *value* as one word of a POSIX shell.

    :param value: any text; a shell word cannot hold NUL, and a lone surrogate cannot be sent as UTF-8.
    :raises QuotingError: for such text.
    """
    if "\0" in value:
        raise QuotingError(f"{value!r} holds a NUL character, which no shell can pass on; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise QuotingError(f"{value!r} is not valid Unicode text; spell it in UTF-8") from None
    return shlex.quote(value)
