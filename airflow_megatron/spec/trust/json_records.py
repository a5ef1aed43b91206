"""Parse values that a job, or another user of the cluster, has written; they may have any content.

An invalid value is treated as missing: it affects only the record of its job, and raises no error.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypeVar, overload

from airflow_megatron.spec.trust.plain_text import storable

LARGEST_RECORD: Final = 16 << 20
"""Maximum number of characters of a JSON text."""
_MOST_DIGITS: Final = 15
"""Maximum of a number of iterations, attempts or seconds: the largest integer range that a float represents
exactly."""

LATEST_MOMENT: Final = 253_402_300_800
"""Unix time at which the year 10000 begins, which databases and ``datetime`` do not know."""

_Default = TypeVar("_Default")


def read_json(text: str | bytes | None) -> Any:
    """Return the value of a JSON text; None if it is absent, cut off, too large or nested too deeply.

    NUL and lone surrogates in its texts become escapes: files, databases and terminals take neither.
    """
    if not text or len(text) > LARGEST_RECORD:
        return None
    try:
        value = json.loads(text)
        escaped = "\\u" in text if isinstance(text, str) else b"\\u" in text
        return storable(value) if escaped else value
    except (ValueError, RecursionError):
        return None


def read_object(text: str | bytes | None) -> dict[str, Any] | None:
    """Return the JSON object in *text*, or None if there is none."""
    value = read_json(text)
    return value if isinstance(value, dict) else None


@overload
def whole(value: object) -> int | None: ...
@overload
def whole(value: object, default: _Default) -> int | _Default: ...
def whole(value: object, default: object = None) -> object:
    """Return a whole number in a record, written as a number or as text; otherwise *default*."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
            return default
        return int(value)
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value.is_integer() else None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 10**_MOST_DIGITS:
        return default
    return value


@overload
def real(value: object) -> float | None: ...
@overload
def real(value: object, default: _Default) -> float | _Default: ...
def real(value: object, default: object = None) -> object:
    """Return a finite number in a record, written as a number or as text; otherwise *default*."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return default
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return default
    return number if math.isfinite(number) else default


def moment(value: object) -> float | None:
    """Return a Unix time in a record; None for other values, and for times before 1970 or after the year 9999."""
    seconds = real(value)
    return seconds if seconds is not None and 0 <= seconds < LATEST_MOMENT else None


def reals(value: object) -> tuple[float, ...]:
    """Return the finite numbers of a list that a record holds; none for anything else."""
    numbers = map(real, value) if isinstance(value, list) else ()
    return tuple(number for number in numbers if number is not None)


def word(value: object) -> str | None:
    """Return a text in a record; None for other values and for an empty text."""
    return value if isinstance(value, str) and value else None
