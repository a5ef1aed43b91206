"""Rows of a training in the store of results."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.logs.iteration_lines import IterationRecord
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.frames import frame_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from airflow_megatron.results.store.segments import SegmentStore
    from airflow_megatron.results.store.tables import Table

SWEEP: Final = "chain"


def source(stage: str, attempt: int = 1, job_id: str = "1", point: str = "p") -> Source:
    return Source(SWEEP, "run", point, stage, attempt, job_id, f"/log-{point}-{stage}-{job_id}", 128, 2)


def put(store: SegmentStore, table: Table, of: Source, **values: Any) -> None:
    row = tuple(values.pop(column.name, None) for column in table.columns)
    assert not values
    frame = frame_of(table.name, [Batch(table.name, of, time.time(), [row])])
    write(store, table.name, frame)


def write(store: SegmentStore, table: str, frame: pl.DataFrame) -> None:
    store.write(SWEEP, frame, table, "0" * 12, len(store.segments(SWEEP)))


def train(
    store: SegmentStore,
    of: Source,
    iterations: range,
    *,
    loss: float = 5.0,
    train_iters: int = 100,
    rate: Callable[[int], float] = lambda iteration: 1e-3,
    **fields: Any,
) -> None:
    """Store iterations: 16 samples of 128 tokens in half a second; other values of a record are ``fields``."""
    template = dict.fromkeys(IterationRecord._fields)
    rows = [
        IterationRecord(
            **template
            | {
                "iteration": number,
                "train_iters": train_iters,
                "consumed_samples": 16 * number,
                "learning_rate": rate(number),
                "losses": {"lm loss": loss - number / 100},
                "elapsed_ms": 500.0,
                "throughput": 100.0,
                "global_batch_size": 16,
                "extra": {},
                **fields,
            }
        )
        for number in iterations
    ]
    write(
        store,
        "iterations",
        frame_of("iterations", [Batch("iterations", of, time.time(), rows, [one.iteration for one in rows])]),
    )
