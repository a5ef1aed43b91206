"""The nearest valid values, for hints."""

from __future__ import annotations

import math
from typing import Final

_FARTHEST: Final = 100_000


def multiples(value: int, unit: int) -> str:
    """Name the positive multiples of ``unit`` just below and above ``value``."""
    unit = max(abs(unit), 1)
    below = max(value // unit * unit, 0)
    return " or ".join(str(number) for number in (below, below + unit) if number > 0)


def divisors(value: int, wanted: int) -> str:
    """Name the divisors of ``value`` nearest to ``wanted``: the next smaller and the next larger one.

    Those of enormous values are looked for near ``wanted`` only, so that no value takes long.
    """
    if value <= 0 or wanted < 1:
        return "1"
    if value <= _FARTHEST**2:
        parts = [part for part in range(1, math.isqrt(value) + 1) if value % part == 0]
        found = sorted({*parts, *(value // part for part in parts)})
    else:
        nearby = range(max(1, wanted - _FARTHEST), min(value, wanted + _FARTHEST) + 1)
        found = sorted({1, *(number for number in nearby if value % number == 0), value})
    below = [number for number in found if number <= wanted][-1:]
    above = [number for number in found if number > wanted][:1]
    return " or ".join(str(number) for number in below + above)
