"""Iteration records of synthetic trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.logs.log_lines import IterationRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

TRAIN_ITERS = 100_000


def line(
    iteration: int, loss: float | None = 2.0, elapsed_ms: float = 1000.0, **fields: Any
) -> IterationRecord:
    return IterationRecord(
        iteration,
        TRAIN_ITERS,
        consumed_samples=iteration * 8,
        elapsed_ms=elapsed_ms,
        global_batch_size=8,
        losses={} if loss is None else {"lm loss": loss},
        **{"skipped_iterations": 0, "nan_iterations": 0, **fields},
    )


def lines(losses: Iterable[float], every: int = 1, start: int = 0) -> list[IterationRecord]:
    """Return a line for each loss, one every so many iterations after *start*."""
    return [line(start + every * (index + 1), loss) for index, loss in enumerate(losses)]
