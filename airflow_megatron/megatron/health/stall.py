"""Detection of an iteration counter that does not increase.

A growing log does not prove progress (a hung rank may print banners for hours), and a log that does not grow does not
prove a hang (saving, validation and the building of data indices print nothing). The detector therefore compares the
counter itself with the usual gaps of this run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
from airflow_megatron.spec.trust.json_records import real, reals, whole, word

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


@dataclass(frozen=True)
class StallMemory:
    """The state of a :class:`StallDetector`, with which a later detector of the attempt continues.

    :param iteration: the last iteration
    :param highest: the highest iteration
    :param step: iterations between the last two log lines
    :param rewinds: number of new starts without a new highest iteration
    :param phase: ``starting``, ``training``, ``saving``, ``validating`` or ``ending``
    :param steps_seen: steps of the start that the log has shown
    :param gaps: the last times between two log lines, in seconds
    :param quiet_gap: longest time between two log lines with a save or a validation, in seconds
    :param quiet: running time since the last progress, in seconds
    :param found: whether the present stall has been reported
    """

    iteration: int | None = None
    highest: int = 0
    step: int = 1
    rewinds: int = 0
    phase: str = STARTING
    steps_seen: tuple[str, ...] = ()
    gaps: tuple[float, ...] = ()
    quiet_gap: float = 0.0
    quiet: float = 0.0
    found: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StallMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        steps = value.get("steps_seen")
        return cls(
            iteration=whole(value.get("iteration")),
            highest=whole(value.get("highest"), 0),
            step=whole(value.get("step"), 1),
            rewinds=whole(value.get("rewinds"), 0),
            phase=word(value.get("phase")) or STARTING,
            steps_seen=tuple(map(str, steps)) if isinstance(steps, list) else (),
            gaps=reals(value.get("gaps")),
            quiet_gap=real(value.get("quiet_gap"), 0.0),
            quiet=real(value.get("quiet"), 0.0),
            found=value.get("found") is True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "steps_seen": list(map(str, self.steps_seen)), "gaps": list(self.gaps)}


class StallDetector:
    """Detects a running job without new iterations.

    The limit is the larger of ``after`` and ``factor`` times the longest of this run's last gaps. Gaps with a save or
    a validation have separate statistics; before the first of them the limit is ``quiet``, and before the first
    iteration ``startup``. Only the time between two consecutive polls of the running job counts.

    :param after: minimum limit in seconds
    :param factor: multiple of the longest observed gap
    :param startup: seconds until the first iteration, and between the steps that lead to it
    :param quiet: seconds for a save or a validation of unknown length, and for the end of the training
    :param intervals: numbers of iterations after which the training saves or validates
    :param memory: result of :meth:`memory` of an earlier detector on this attempt
    """

    def __init__(
        self,
        *,
        after: float,
        factor: float,
        startup: float,
        quiet: float,
        intervals: Sequence[int] = (),
        memory: StallMemory | None = None,
    ) -> None:
        known = memory or StallMemory()
        self._after, self._factor, self._startup, self._quiet_limit = after, factor, startup, quiet
        self._intervals = tuple(intervals)
        self._iteration: int | None = known.iteration
        self._highest: int = known.highest
        self._step: int = known.step
        self._rewinds: int = known.rewinds
        self._phase: str = known.phase
        self._steps_seen: list[str] = list(known.steps_seen)
        self._gaps: list[float] = list(known.gaps)
        self._quiet_gap: float = known.quiet_gap
        self._quiet: float = known.quiet
        self._found: bool = known.found
        self._looked: float | None = None

    def memory(self) -> StallMemory:
        """Return the state with which a later detector of this attempt continues."""
        return StallMemory(
            iteration=self._iteration,
            highest=self._highest,
            step=self._step,
            rewinds=self._rewinds,
            phase=self._phase,
            steps_seen=tuple(self._steps_seen),
            gaps=tuple(self._gaps),
            quiet_gap=self._quiet_gap,
            quiet=self._quiet,
            found=self._found,
        )

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

        :param records: new records of its log
        :param now: time of a monotonic clock in seconds
        :param running: whether the job runs; false while it is pending, completing, suspended or unknown
        :param queued: whether it waits for its start, or for a restart
        """
        if running and self._looked is not None:
            self._quiet += now - self._looked
        self._looked = now if running else None
        if queued and self._phase != STARTING:
            self._reset()
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
                        self._reset()
                self._note_step(record.kind)
            elif record.kind is not MarkerKind.OTHER:
                self._enter(ENDING)

    def _advance(self, record: IterationRecord) -> None:
        """Record an iteration; a lower one is a new start in the same log, of which the number is limited."""
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
                pass  # a stall that has passed is not a usual gap
            elif self._phase in (SAVING, VALIDATING) or self._is_due(before):
                self._quiet_gap = max(self._quiet_gap, gap)
            else:
                self._gaps = [*self._gaps[1 - _GAPS_KEPT :], gap]
        last = record.train_iters and record.iteration >= record.train_iters
        self._phase = ENDING if last else TRAINING
        self._quiet, self._found = 0.0, False

    def _is_due(self, iteration: int | None = None) -> bool:
        """Return whether a save or a validation follows an iteration (default: the newest) before its next line."""
        start = self._iteration if iteration is None else iteration
        if start is None:
            return False
        return any((start + self._step - 1) // every > (start - 1) // every for every in self._intervals)

    def _enter(self, phase: str) -> None:
        if self._iteration is not None and self._phase != phase:
            self._phase, self._quiet = phase, 0.0

    def _note_step(self, step: str) -> None:
        """Count a new step of the start as progress."""
        if step not in self._steps_seen:
            self._steps_seen.append(step)
            if self._phase == STARTING:
                self._quiet = 0.0

    def _reset(self) -> None:
        self._phase, self._quiet, self._found, self._steps_seen = STARTING, 0.0, False, []


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
