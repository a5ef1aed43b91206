"""Choose the values of a curve to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def kept_points(x: Sequence[float], y: Sequence[float], most: int) -> list[int]:
    """Return the indices of the values to draw: the first, the last, and the extrema of the intervals between them.

    Spikes are therefore always drawn.

    :param x: increasing values
    :param y: as many values
    :param most: maximum number of indices, at least 2
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
