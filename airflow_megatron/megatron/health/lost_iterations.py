"""Iterations lost to NaN, or skipped by the loss scaler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.finding import HealthFinding
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_megatron.megatron.logs.log_lines import IterationRecord


def nan_iterations(record: IterationRecord, reported: int) -> int:
    """Return the number of iterations of a line whose loss is not a finite number."""
    if record.nan_iterations:
        return record.nan_iterations
    return reported if record.is_nan else 0


def skipped_iterations(record: IterationRecord, reported: int) -> int:
    """Return the number of iterations of a line without an optimizer step."""
    return record.skipped_iterations or 0


@dataclass(frozen=True)
class LostIterationsMemory:
    """The state of a :class:`LostIterationsDetector`, with which a later detector of the attempt continues.

    :param row: number of consecutive lost iterations
    :param first: the first of them
    :param found: whether this series has been reported
    :param iteration: the last iteration
    """

    row: int = 0
    first: int = 0
    found: bool = False
    iteration: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LostIterationsMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        return cls(
            row=whole(value.get("row"), 0),
            first=whole(value.get("first"), 0),
            found=value.get("found") is True,
            iteration=whole(value.get("iteration")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


class LostIterationsDetector:
    """Detects many consecutive lost iterations, or lost iterations of one line; reports each series once.

    :param count: returns the number of lost iterations of a line, given the line and its number of iterations
    :param what: name of such iterations, for messages
    :param iterations: minimum number to report
    :param memory: result of :meth:`memory` of an earlier detector on this attempt
    """

    def __init__(
        self,
        count: Callable[[IterationRecord, int], int],
        what: str,
        *,
        iterations: int,
        memory: LostIterationsMemory | None = None,
    ) -> None:
        known = memory or LostIterationsMemory()
        self._count, self._what, self._limit = count, what, iterations
        self._row: int = known.row
        self._first: int = known.first
        self._found: bool = known.found
        self._iteration: int | None = known.iteration

    def memory(self) -> LostIterationsMemory:
        """Return the state with which a later detector of this attempt continues."""
        return LostIterationsMemory(self._row, self._first, self._found, self._iteration)

    def read(self, record: IterationRecord) -> HealthFinding | None:
        """Evaluate the next line."""
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
