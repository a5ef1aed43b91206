"""Means over seeds, with confidence intervals."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Mean:
    """A mean and half the width of its 95 % confidence interval, NaN for a single value."""

    value: float
    margin: float


def mean(values: Sequence[float]) -> Mean:
    """Return the mean of independent values with Student's confidence interval.

    :param values: one per seed, at least one.
    """
    centre = statistics.fmean(values)
    if len(values) < 2:
        return Mean(centre, math.nan)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Mean(centre, _student_95(len(values) - 1) * error)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile *share* of the values; NaN if there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _student_95(freedom: int) -> float:
    """Return Student's two-sided 95 % quantile (Abramowitz & Stegun 26.7.5; within 0.5 % from 4 degrees on)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
