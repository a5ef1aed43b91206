"""One training run, combined from the records of all its attempts."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.logs.iteration_lines import LARGEST_LOSS
from airflow_megatron.megatron.logs.log_lines import (
    CheckpointEvent,
    CheckpointRecord,
    ErrorRecord,
    IterationRecord,
    MarkerRecord,
    ParameterCount,
    Record,
    Restarts,
    ValidationRecord,
    merge_iterations,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOADS: Final = (CheckpointEvent.LOADING, CheckpointEvent.LOADED)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The data in the logs of a training run.

    :param iterations: the logged iterations that belong to the run, ascending
    :param validations: validation and test losses that belong to the run, the last value of each, in order of
        iteration; those of an iteration in the order of the log
    :param parameters: number of parameters of the model, or None if no log has it
    :param markers: the markers of all attempts, in order
    :param errors: the errors of all attempts, in order
    :param loaded: iteration of the checkpoint that it loaded before its first logged iteration, None for none
    :param first: the first logged iteration
    """

    iterations: tuple[IterationRecord, ...]
    validations: tuple[ValidationRecord, ...]
    parameters: int | None
    markers: tuple[MarkerRecord, ...]
    errors: tuple[ErrorRecord, ...]
    loaded: int | None
    first: IterationRecord | None

    @classmethod
    def of(cls, records: Sequence[Record]) -> TrainingRun:
        """Combine a run.

        :param records: records of its attempts' logs, oldest attempt first.
        :returns: the run; every part of it may be empty.
        """
        validations = _validations(records)
        loaded, first = _start(records)
        return cls(
            iterations=tuple(merge_iterations(records)),
            validations=tuple(validations),
            parameters=_parameters(records),
            markers=tuple(record for record in records if isinstance(record, MarkerRecord)),
            errors=tuple(record for record in records if isinstance(record, ErrorRecord)),
            loaded=loaded,
            first=first,
        )

    @property
    def last(self) -> IterationRecord | None:
        """The last logged iteration."""
        return self.iterations[-1] if self.iterations else None

    @property
    def line_seconds(self) -> list[float | None]:
        """Training time (seconds) that each logged iteration stands for, with those before it that were not logged.

        The first line covers the iterations since the loaded checkpoint, at most as many as the second line. None for a
        line without a timing, or with one that is not finite.
        """
        numbers = [record.iteration for record in self.iterations]
        steps = [after - before for before, after in itertools.pairwise(numbers)]
        if numbers:
            begun = self.loaded if self.loaded is not None and self.loaded < numbers[0] else 0
            steps.insert(0, min([numbers[0] - begun, *steps[:1]]))
        return [
            record.elapsed_ms / 1000 * max(1, each)
            if record.elapsed_ms is not None and math.isfinite(record.elapsed_ms)
            else None
            for record, each in zip(self.iterations, steps, strict=True)
        ]

    @property
    def skipped(self) -> list[int]:
        """Iterations without an update that each logged line adds to those before it.

        From core_v0.16 on, upstream logs the first iteration after a start, and counts it again in the next line. That
        line then has more skipped iterations than iterations, or a loss although its only iteration was skipped; or
        the first line is not at a multiple of the logging interval.
        """
        counts = [record.skipped_iterations or 0 for record in self.iterations]
        numbers = [record.iteration for record in self.iterations]
        for index in range(1, len(counts)):
            step, count = numbers[index] - numbers[index - 1], counts[index]
            only_first = index == 1 and len(numbers) > 2 and numbers[0] % (numbers[2] - numbers[1]) > 0
            if counts[index - 1] and (
                count > step
                or (count == step == 1 and self.iterations[index].loss is not None)
                or (count and only_first)
            ):
                counts[index] -= 1
        return counts

    @property
    def train_loss(self) -> float | None:
        """Training loss at the end (nats per token).

        This is the mean over the last twentieth of the logged iterations, at most ten, to reduce the noise of single
        batches. None if the run ended in NaN.
        """
        if not self.iterations or self.iterations[-1].is_nan:
            return None
        window = min(10, max(1, len(self.iterations) // 20))
        found = (record.loss for record in self.iterations[-window:])
        losses = [loss for loss in found if loss is not None and abs(loss) <= LARGEST_LOSS]
        return statistics.fmean(losses) if losses else None

    @property
    def validation_losses(self) -> dict[int, float | None]:
        """Validation losses (nats per token) by iteration: of several sets the first, of several values the last."""
        found: dict[int, ValidationRecord] = {}
        for record in self.validations:
            if record.iteration is None or record.split != "validation":
                continue
            if found.setdefault(record.iteration, record).dataset == record.dataset:
                found[record.iteration] = record
        return {iteration: record.loss for iteration, record in found.items()}

    def evaluation_loss(self, split: str) -> float | None:
        """Return the last loss (nats per token) on a held-out set.

        :param split: ``validation`` or ``test``.
        :returns: the loss of the final evaluation, or without one the latest during training.
        """
        of_split = [record for record in self.validations if record.split == split]
        finals = [record for record in of_split if record.final]
        # Of several sets of one split, the first represents the run, as in Megatron's blended loss.
        chosen = finals or of_split
        if not chosen:
            return None
        iteration = chosen[-1].iteration
        return next(record.loss for record in chosen if record.iteration == iteration)

    def tokens_per_second(self, seq_length: int) -> float | None:
        """Return the median training speed.

        :param seq_length: tokens per sample.
        :returns: tokens per second of the whole job; None without timings.
        """
        # The first logged iteration of an attempt includes the warm-up.
        speeds = [
            record.global_batch_size * seq_length * 1000 / record.elapsed_ms
            for record in self.iterations[1:] or self.iterations
            if record.elapsed_ms and record.global_batch_size
        ]
        return statistics.median(speeds) if speeds else None


def _validations(records: Sequence[Record]) -> list[ValidationRecord]:
    """Return the last value of each loss on a held-out set, without those of iterations that the run has left again.

    A restart or rollback removes them like the iterations (:func:`.merge_iterations`): the model whose loss they are is
    not that of the run.
    """
    found: dict[tuple[int, str, str, bool], ValidationRecord] = {}
    highest = -1
    restarts = Restarts()
    for record in records:
        limit = restarts.read(record)
        if isinstance(record, ValidationRecord):
            iteration = record.iteration if record.iteration is not None else -1
            highest = max(highest, iteration)
            found[iteration, record.split, record.dataset or "", record.final] = record
        elif limit is not None and highest > limit:
            found = {key: each for key, each in found.items() if key[0] <= limit}
            highest = limit
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def _start(records: Sequence[Record]) -> tuple[int | None, IterationRecord | None]:
    loaded: int | None = None
    for record in records:
        if isinstance(record, IterationRecord):
            return loaded, record
        if isinstance(record, CheckpointRecord) and record.event in _LOADS:
            loaded = record.iteration
    return loaded, None


def _parameters(records: Sequence[Record]) -> int | None:
    per_rank: dict[tuple[int, ...], int] = {}
    total = None
    for record in records:
        if isinstance(record, ParameterCount):
            if record.scope == "rank":
                per_rank[record.ranks] = record.parameters
            elif record.scope == "total" and record.parameters:
                total = record.parameters
    # The ranks' counts are exact, but count parameters that tensor parallelism replicates (norms) several
    # times; the total is printed with two decimals in billions, which is too coarse for a small model.
    if len(per_rank) == 1 or (per_rank and (total is None or total < 1_000_000_000)):
        return sum(per_rank.values())
    return total
