"""Detection of a loss that has jumped and stays high.

Most spikes pass: BLOOM-176B's of 2022-04-12 recovered within 30 iterations (bigscience, chronicles of tr11-176B). A
spike is therefore reported only if it has not passed for some time.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.finding import HealthFinding
from airflow_megatron.spec.trust.json_records import reals, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.logs.log_lines import IterationRecord

_LOSSES_KEPT = 100
_LEAST_LOSSES = 20
_LEAST_LINES = 2
_MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation of a normal distribution → its standard deviation (Huber, Robust Statistics, 1981)."""


@dataclass(frozen=True)
class SpikeMemory:
    """The state of a :class:`SpikeDetector`, with which a later detector of the attempt continues.

    :param losses: the last losses outside of spikes
    :param first: first iteration of the current spike, None without one
    :param lines: number of log lines in the current spike
    :param found: whether the current spike has been reported
    :param iteration: the last iteration
    """

    losses: tuple[float, ...] = ()
    first: int | None = None
    lines: int = 0
    found: bool = False
    iteration: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SpikeMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        return cls(
            losses=reals(value.get("losses")),
            first=whole(value.get("first")),
            lines=whole(value.get("lines"), 0),
            found=value.get("found") is True,
            iteration=whole(value.get("iteration")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "losses": list(self.losses)}


class SpikeDetector:
    """Detects losses that stay far above the running median of the run.

    Far means more than ``deviations`` standard deviations, estimated from the median absolute deviation of the last
    lines, and more than the fraction ``rise`` of the median. A spike has passed when the loss is below half that
    distance. Lines of the spike are not included in the median.

    :param deviations: standard deviations above the median
    :param rise: fraction of the median, for losses with little variation
    :param recovery: iterations within which a spike may pass
    :param memory: result of :meth:`memory` of an earlier detector on this attempt
    """

    def __init__(
        self, *, deviations: float, rise: float, recovery: int, memory: SpikeMemory | None = None
    ) -> None:
        known = memory or SpikeMemory()
        self._deviations, self._rise, self._recovery = deviations, rise, recovery
        self._losses: list[float] = list(known.losses)
        self._first: int | None = known.first
        self._lines: int = known.lines
        self._found: bool = known.found
        self._iteration: int | None = known.iteration

    def memory(self) -> SpikeMemory:
        """Return the state with which a later detector of this attempt continues."""
        return SpikeMemory(tuple(self._losses), self._first, self._lines, self._found, self._iteration)

    @property
    def _usual(self) -> tuple[float, float]:
        """The median of the last losses, and the threshold of a spike; infinite until enough losses are known."""
        if len(self._losses) < _LEAST_LOSSES:
            return 0.0, math.inf
        median = statistics.median(self._losses)
        spread = statistics.median(abs(loss - median) for loss in self._losses) * _MAD_TO_DEVIATION
        return median, max(self._deviations * spread, self._rise * abs(median))

    def read(self, record: IterationRecord) -> HealthFinding | None:
        """Evaluate the next line; another detector handles losses that are not finite numbers."""
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
