"""A loss that has jumped and stays up.

Most spikes pass: BLOOM-176B's of 2022-04-12 recovered within 30 iterations (bigscience, chronicles of tr11-176B). So
one is reported only when it has not passed for a while.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.finding import HealthFinding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.logs.log_lines import IterationRecord

_LOSSES_KEPT = 100
_LEAST_LOSSES = 20
_LEAST_LINES = 2
_MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation of a normal distribution → its standard deviation (Huber, Robust Statistics, 1981)."""


class SpikeDetector:
    """Detects losses far above the run's running median that stay high.

    Far is more than ``deviations`` standard deviations, estimated from the median absolute deviation of the last lines,
    and more than the share ``rise`` of the median. A spike has passed when the loss is back below half that distance.
    Lines of the spike do not count to the median.

    :param deviations: standard deviations above the median
    :param rise: share of the median, for losses that hardly vary
    :param recovery: iterations in which a spike may pass
    :param memory: what :meth:`memory` of an earlier detector on this attempt gave
    """

    def __init__(
        self, *, deviations: float, rise: float, recovery: int, memory: Mapping[str, Any] | None = None
    ) -> None:
        known = dict(memory or {})
        self._deviations, self._rise, self._recovery = deviations, rise, recovery
        self._losses: list[float] = list(known.get("losses", ()))
        self._first: int | None = known.get("first")
        self._lines: int = known.get("lines", 0)
        self._found: bool = known.get("found", False)
        self._iteration: int | None = known.get("iteration")

    def memory(self) -> dict[str, Any]:
        """Return the state with which a later detector of this attempt continues."""
        return {
            "losses": self._losses,
            "first": self._first,
            "lines": self._lines,
            "found": self._found,
            "iteration": self._iteration,
        }

    @property
    def _usual(self) -> tuple[float, float]:
        """The median of the last losses, and the threshold of a spike; infinite until enough losses are known."""
        if len(self._losses) < _LEAST_LOSSES:
            return 0.0, math.inf
        median = statistics.median(self._losses)
        spread = statistics.median(abs(loss - median) for loss in self._losses) * _MAD_TO_DEVIATION
        return median, max(self._deviations * spread, self._rise * abs(median))

    def read(self, record: IterationRecord) -> HealthFinding | None:
        """Take in the next line; a loss that is not a finite number is another detector's matter."""
        before, self._iteration = self._iteration, record.iteration
        loss = record.loss
        if loss is None or not math.isfinite(loss) or record.iteration == before:
            return None
        median, distance = self._usual
        if loss <= median + (distance if self._first is None else distance / 2):
            self._losses = [*self._losses[1 - _LOSSES_KEPT :], loss]
            self._first, self._lines, self._found = None, 0, False
            return None
        if self._first is None:
            self._first = before + 1 if before is not None and before < record.iteration else record.iteration
        self._lines += 1
        passed = record.iteration - self._first + 1
        if self._found or self._lines < _LEAST_LINES or passed <= self._recovery:
            return None
        self._found = True
        return HealthFinding(
            f"the loss is {loss:.4g} at iteration {record.iteration} and has been far above the median of {median:.4g} "
            f"since iteration {self._first} (a spike begins at {median + distance:.4g})",
            self._first,
        )
