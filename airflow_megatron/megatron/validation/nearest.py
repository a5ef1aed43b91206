"""The nearest values that fit: what a refusal proposes instead."""

from __future__ import annotations


def multiples(value: int, unit: int) -> str:
    """Name the positive multiples of ``unit`` just below and above ``value``."""
    unit = max(abs(unit), 1)
    below = max(value // unit * unit, 0)
    return " or ".join(str(number) for number in (below, below + unit) if number > 0)


def divisors(value: int, wanted: int) -> str:
    """Name the divisors of ``value`` nearest to ``wanted``: the next smaller and the next larger one."""
    if value <= 0:
        return "1"
    found = sorted(
        {part for low in range(1, int(value**0.5) + 1) if value % low == 0 for part in (low, value // low)}
    )
    below = [number for number in found if number <= wanted][-1:]
    above = [number for number in found if number > wanted][:1]
    return " or ".join(str(number) for number in below + above)
