"""Iterations lost to NaN, or skipped by the loss scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.finding import HealthFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_megatron.megatron.logs.log_lines import IterationRecord


def nan_iterations(record: IterationRecord, reported: int) -> int:
    """Return how many of the iterations that a line reports had a loss that is not a finite number."""
    if record.nan_iterations:
        return record.nan_iterations
    return reported if record.is_nan else 0


def skipped_iterations(record: IterationRecord, reported: int) -> int:
    """Return how many of the iterations that a line reports had no optimizer step."""
    return record.skipped_iterations or 0


class LostIterationsDetector:
    """Detects that many consecutive iterations, or iterations of one line, were lost. Each series is reported once.

    :param count: how many of a line's iterations were lost, given the line and how many it reports
    :param what: names them
    :param iterations: how many are too many
    :param memory: what :meth:`memory` of an earlier detector on this attempt gave
    """

    def __init__(
        self,
        count: Callable[[IterationRecord, int], int],
        what: str,
        *,
        iterations: int,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        known = dict(memory or {})
        self._count, self._what, self._limit = count, what, iterations
        self._row: int = known.get("row", 0)
        self._first: int = known.get("first", 0)
        self._found: bool = known.get("found", False)
        self._iteration: int | None = known.get("iteration")

    def memory(self) -> dict[str, Any]:
        """Return the state with which a later detector of this attempt continues."""
        return {
            "row": self._row,
            "first": self._first,
            "found": self._found,
            "iteration": self._iteration,
        }

    def read(self, record: IterationRecord) -> HealthFinding | None:
        """Take in the next line."""
        before, self._iteration = self._iteration, record.iteration
        if before == record.iteration:
            return None
        reported = record.iteration - before if before is not None and record.iteration > before else 1
        lost = self._count(record, reported)
        if lost == 0:
            self._row, self._found = 0, False
            return None
        if self._row == 0 or lost < reported:
            self._row, self._first = 0, record.iteration - reported + 1
        self._row += lost
        if self._found or self._row < self._limit:
            return None
        self._found = True
        return HealthFinding(
            f"{self._row} {self._what} iterations, from iteration {self._first} on", self._first
        )
