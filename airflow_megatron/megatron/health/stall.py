"""Detection of an iteration counter that does not increase.

A log that grows is no progress (a hung rank may print banners for hours), and one that does not grow is not a hang
(saving, validation and the building of data indices are quiet). So the counter itself is watched, against what this run
has shown to be usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.finding import HealthFinding
from airflow_megatron.megatron.logs.log_lines import (
    CheckpointEvent,
    CheckpointRecord,
    IterationRecord,
    MarkerKind,
    MarkerRecord,
    ValidationRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.logs.log_lines import Record

_GAPS_KEPT = 32
_MOST_REWINDS = 3
"""As NVIDIA's resiliency extension counts cycles without progress (``max_no_progress_cycles``)."""

STARTING, TRAINING, SAVING, VALIDATING, ENDING = "starting", "training", "saving", "validating", "ending"
_BEFORE_ITERATIONS = frozenset(
    {
        MarkerKind.INITIALIZED,
        MarkerKind.MODEL_BUILT,
        MarkerKind.DATALOADERS_BUILT,
        MarkerKind.BEFORE_TRAINING,
    }
)


class StallDetector:
    """Finds that no new iteration comes although the job runs.

    The limit is the larger of ``after`` and ``factor`` times the longest of this run's last gaps. Gaps that hold a
    save or a validation are learned apart, and before the first of them ``quiet`` is the limit; before the first
    iteration it is ``startup``. Time counts between two looks that both saw the job running, and nothing else does.

    :param after: seconds, the least limit
    :param factor: of the longest gap seen
    :param startup: seconds until the first iteration, and between the steps that lead to it
    :param quiet: seconds for a save or a validation of unknown length, and for the end of the training
    :param intervals: numbers of iterations after which the training saves or validates
    :param memory: what :meth:`memory` of an earlier detector on this attempt gave
    """

    def __init__(
        self,
        *,
        after: float,
        factor: float,
        startup: float,
        quiet: float,
        intervals: Sequence[int] = (),
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        known = dict(memory or {})
        self._after, self._factor, self._startup, self._quiet_limit = after, factor, startup, quiet
        self._intervals = tuple(intervals)
        self._iteration: int | None = known.get("iteration")
        self._highest: int = known.get("highest", 0)
        self._step: int = known.get("step", 1)
        self._rewinds: int = known.get("rewinds", 0)
        self._phase: str = known.get("phase", STARTING)
        self._steps_seen: list[str] = list(known.get("steps_seen", ()))
        self._gaps: list[float] = list(known.get("gaps", ()))
        self._quiet_gap: float = known.get("quiet_gap", 0.0)
        self._quiet: float = known.get("quiet", 0.0)
        self._found: bool = known.get("found", False)
        self._looked: float | None = None

    def memory(self) -> dict[str, Any]:
        """Return the state with which a later detector of this attempt continues."""
        return {
            "iteration": self._iteration,
            "highest": self._highest,
            "step": self._step,
            "rewinds": self._rewinds,
            "phase": self._phase,
            "steps_seen": self._steps_seen,
            "gaps": self._gaps,
            "quiet_gap": self._quiet_gap,
            "quiet": self._quiet,
            "found": self._found,
        }

    @property
    def limit(self) -> float:
        """Seconds without a new iteration that are not suspicious now."""
        if self._phase == STARTING:
            return self._startup
        usual = max(self._after, self._factor * max(self._gaps, default=0.0))
        if self._phase == ENDING:
            return max(usual, self._quiet_limit)
        if self._phase in (SAVING, VALIDATING) or self._is_due():
            learned = self._factor * self._quiet_gap
            return max(usual, learned if learned else self._quiet_limit)
        return usual

    def read(
        self, records: Sequence[Record], *, now: float, running: bool, queued: bool = False
    ) -> HealthFinding | None:
        """Evaluate one poll of the job.

        :param records: new ones of its log
        :param now: seconds of a clock that never jumps
        :param running: the job runs; not so while it is pending, completing or suspended, or nothing is known of it
        :param queued: it waits to be started, again maybe
        """
        if running and self._looked is not None:
            self._quiet += now - self._looked
        self._looked = now if running else None
        if queued and self._phase != STARTING:
            self._begin_again()
        for record in records:
            self._take(record)
        if not running or self._found or self._quiet < self.limit:
            return None
        self._found = True
        since = "began" if self._iteration is None else f"reached iteration {self._iteration}"
        return HealthFinding(
            f"no new iteration for {_span(self._quiet)} since it {since} "
            f"({self._phase}; the limit is {_span(self.limit)})"
        )

    def _take(self, record: Record) -> None:
        if isinstance(record, IterationRecord):
            if record.iteration != self._iteration:
                self._advance(record)
        elif isinstance(record, CheckpointRecord):
            if record.event is CheckpointEvent.SAVING:
                self._enter(SAVING)
            elif record.event in (CheckpointEvent.LOADING, CheckpointEvent.LOADED):
                self._note_step(record.event)
        elif isinstance(record, ValidationRecord):
            self._enter(VALIDATING)
        elif isinstance(record, MarkerRecord):
            if record.kind in _BEFORE_ITERATIONS:
                if record.kind is MarkerKind.INITIALIZED and self._phase != STARTING:
                    self._rewinds += 1
                    if self._rewinds <= _MOST_REWINDS:
                        self._begin_again()
                self._note_step(record.kind)
            elif record.kind is not MarkerKind.OTHER:
                self._enter(ENDING)

    def _advance(self, record: IterationRecord) -> None:
        """Record an iteration; an earlier one is a new start in the same log; the number of new starts is limited."""
        before, self._iteration = self._iteration, record.iteration
        if record.iteration > self._highest:
            self._highest, self._rewinds = record.iteration, 0
        elif before is not None and record.iteration < before:
            self._rewinds += 1
        if self._rewinds > _MOST_REWINDS:
            return
        if before is not None and record.iteration > before and self._phase != STARTING:
            self._step = record.iteration - before
            gap = max(self._quiet, self._step * (record.elapsed_ms or 0.0) / 1000)
            if self._found:
                pass  # a stall that passed is not what is usual
            elif self._phase in (SAVING, VALIDATING) or self._is_due(before):
                self._quiet_gap = max(self._quiet_gap, gap)
            else:
                self._gaps = [*self._gaps[1 - _GAPS_KEPT :], gap]
        last = record.train_iters and record.iteration >= record.train_iters
        self._phase = ENDING if last else TRAINING
        self._quiet, self._found = 0.0, False

    def _is_due(self, iteration: int | None = None) -> bool:
        """Return whether a save or a validation comes between an iteration (the newest) and the line after it."""
        start = self._iteration if iteration is None else iteration
        if start is None:
            return False
        return any((start + self._step - 1) // every > (start - 1) // every for every in self._intervals)

    def _enter(self, phase: str) -> None:
        if self._iteration is not None and self._phase != phase:
            self._phase, self._quiet = phase, 0.0

    def _note_step(self, step: str) -> None:
        """Take a step of the start, seen for the first time, as a sign of life."""
        if step not in self._steps_seen:
            self._steps_seen.append(step)
            if self._phase == STARTING:
                self._quiet = 0.0

    def _begin_again(self) -> None:
        self._phase, self._quiet, self._found, self._steps_seen = STARTING, 0.0, False, []


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
