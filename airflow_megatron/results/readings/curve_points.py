"""Choose the values of a curve that are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def kept_points(x: Sequence[float], y: Sequence[float], most: int) -> list[int]:
    """Return the indices of the values to draw: first, last, and the lowest and highest of the stretches between.

    Spikes stay, whatever the number of values.

    :param x: rising
    :param y: as many values
    :param most: indices to return, at most; two or more
    """
    count = len(x)
    if count <= most or count <= 2:
        return list(range(count))
    stretches = (most - 2) // 2
    kept = {0, count - 1}
    inner = count - 2
    for number in range(stretches):
        start = 1 + number * inner // stretches
        end = 1 + (number + 1) * inner // stretches
        if start < end:
            part = range(start, end)
            kept.add(min(part, key=y.__getitem__))
            kept.add(max(part, key=y.__getitem__))
    return sorted(kept)
