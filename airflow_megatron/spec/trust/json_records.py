"""Read values that a job, or another user of the cluster, has written; they may have any content.

An invalid value is treated as missing: it affects only the record of its job, and raises no error.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypeVar, overload

LARGEST_RECORD: Final = 16 << 20
"""Characters of a JSON text that is read."""
_MOST_DIGITS: Final = 15
"""Of a number of iterations, attempts, seconds: what a float holds exactly."""

_Default = TypeVar("_Default")


def read_json(text: str | bytes | None) -> Any:
    """Return the value of a JSON text; None if it is absent, cut off, too large or nested too deeply."""
    if not text or len(text) > LARGEST_RECORD:
        return None
    try:
        return json.loads(text)
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
    """Return a whole number that a record holds, as a number or as text; else *default*."""
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
    """Return a finite number that a record holds, as a number or as text; else *default*."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return default
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return default
    return number if math.isfinite(number) else default


def word(value: object) -> str | None:
    """Return a text that a record holds; None for anything else and for an empty one."""
    return value if isinstance(value, str) and value else None
