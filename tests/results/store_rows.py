"""Rows for the tests of the store."""

from __future__ import annotations

from airflow_megatron.megatron.logs.iteration_lines import IterationRecord
from airflow_megatron.results.store.batches import Batch, Source

SOURCE = Source(
    "s", "manual__1", "p", "pretrain", 1, "7", "/r/s/p/logs/pretrain-1.out", seq_length=32, gpus=8
)
READ_AT = 1795341600.0


def record(iteration: int) -> IterationRecord:
    return IterationRecord(
        iteration,
        100,
        4 * iteration,
        losses={"lm loss": 10.0 - iteration, "mtp loss": 8.0},
        global_batch_size=4,
        extra={"params norm": 7},
    )


def iterations(*numbers: int, source: Source = SOURCE, time: float = READ_AT) -> Batch:
    return Batch(
        "iterations",
        source,
        time,
        [record(number) for number in numbers],
        [100 * number for number in numbers],
    )
