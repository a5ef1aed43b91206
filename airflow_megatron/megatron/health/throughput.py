"""Detection of a training that has become much slower."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.finding import HealthFinding
from airflow_megatron.spec.trust.json_records import reals, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.logs.log_lines import IterationRecord

_SPEEDS_KEPT = 64
_LEAST_SPEEDS = 10


@dataclass(frozen=True)
class ThroughputMemory:
    """The state of a :class:`ThroughputDetector`, with which a later detector of the attempt continues.

    :param speeds: the last speeds that were not slow, in samples or iterations per second
    :param slow: number of consecutive slow lines
    :param iteration: the last iteration
    """

    speeds: tuple[float, ...] = ()
    slow: int = 0
    iteration: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ThroughputMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        return cls(reals(value.get("speeds")), whole(value.get("slow"), 0), whole(value.get("iteration")))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "speeds": list(self.speeds)}


class ThroughputDetector:
    """Detects speeds below a fraction of the run's median in consecutive lines.

    The median is over the last lines of this attempt that were not slow, without its first line, which includes
    compilation and warm-up. A finding is reported once, and again only after a phase of usual speed.

    :param below: fraction of the median, 0 to 1
    :param lines: number of consecutive slow lines
    :param memory: result of :meth:`memory` of an earlier detector on this attempt
    """

    def __init__(self, *, below: float, lines: int, memory: ThroughputMemory | None = None) -> None:
        known = memory or ThroughputMemory()
        self._below, self._lines = below, lines
        self._speeds: list[float] = list(known.speeds)
        self._slow: int = known.slow
        self._iteration: int | None = known.iteration

    def memory(self) -> ThroughputMemory:
        """Return the state with which a later detector of this attempt continues."""
        return ThroughputMemory(tuple(self._speeds), self._slow, self._iteration)

    def read(self, record: IterationRecord) -> HealthFinding | None:
        """Evaluate the next line."""
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
