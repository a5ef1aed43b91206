"""A training that is much slower than it was."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.finding import HealthFinding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.logs.log_lines import IterationRecord

_SPEEDS_KEPT = 64
_LEAST_SPEEDS = 10


class ThroughputDetector:
    """Detects speeds below a share of the run's median in consecutive lines.

    The median is over the last lines of this attempt that were not slow, its first line apart, which holds compilation
    and warm-up. A finding is reported once, and again after the speed has been usual in between.

    :param below: share of the median, 0 to 1
    :param lines: how many slow lines in a row
    :param memory: what :meth:`memory` of an earlier detector on this attempt gave
    """

    def __init__(self, *, below: float, lines: int, memory: Mapping[str, Any] | None = None) -> None:
        known = dict(memory or {})
        self._below, self._lines = below, lines
        self._speeds: list[float] = list(known.get("speeds", ()))
        self._slow: int = known.get("slow", 0)
        self._iteration: int | None = known.get("iteration")

    def memory(self) -> dict[str, Any]:
        """Return the state with which a later detector of this attempt continues."""
        return {"speeds": self._speeds, "slow": self._slow, "iteration": self._iteration}

    def read(self, record: IterationRecord) -> HealthFinding | None:
        """Take in the next line."""
        before, self._iteration = self._iteration, record.iteration
        if not record.elapsed_ms or before is None or record.iteration <= before:
            return None
        speed = (record.global_batch_size or 1) * 1000 / record.elapsed_ms
        usual = statistics.median(self._speeds) if len(self._speeds) >= _LEAST_SPEEDS else 0.0
        if speed >= self._below * usual:
            self._speeds = [*self._speeds[1 - _SPEEDS_KEPT :], float(f"{speed:.6g}")]
            self._slow = 0
            return None
        self._slow += 1
        if self._slow != self._lines:
            return None
        unit = "samples" if record.global_batch_size else "iterations"
        return HealthFinding(
            f"{speed:.3g} {unit}/s at iteration {record.iteration}: for {self._lines} lines below "
            f"{100 * self._below:.0f} % of the run's median of {usual:.3g} {unit}/s"
        )
