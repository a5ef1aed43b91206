"""The nearest valid values, for hints."""

from __future__ import annotations

import math
from typing import Final

_FARTHEST: Final = 100_000
_MOST_BITS: Final = 64


def multiples(value: int, unit: int) -> str:
    """Return the nearest positive multiples of ``unit`` below and above ``value``, as text."""
    unit = max(abs(unit), 1)
    below = max(value // unit * unit, 0)
    return " or ".join(str(number) for number in (below, below + unit) if number > 0)


def divisors(value: int, wanted: int) -> str:
    """Return the divisors of ``value`` nearest to ``wanted``, the next smaller and the next larger one, as text.

    For large values, only a range near ``wanted`` is searched, and for values of more than 64 bits none, so that no
    value takes long.
    """
    if value <= 0 or wanted < 1:
        return "1"
    if value <= _FARTHEST**2:
        parts = [part for part in range(1, math.isqrt(value) + 1) if value % part == 0]
        found = sorted({*parts, *(value // part for part in parts)})
    elif value.bit_length() > _MOST_BITS:
        found = [1, value]
    else:
        nearby = range(max(1, wanted - _FARTHEST), min(value, wanted + _FARTHEST) + 1)
        found = sorted({1, *(number for number in nearby if value % number == 0), value})
    below = [number for number in found if number <= wanted][-1:]
    above = [number for number in found if number > wanted][:1]
    return " or ".join(str(number) for number in below + above)
