"""The seconds of a curve do not depend on the parts in which its lines were read."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.results.store.curve_entries import CurveEntries
from airflow_megatron.results.store.line_numbers import METRICS


def lines(iterations: list[int], training: int = 0) -> pl.DataFrame:
    """Return lines of a training with 1 s per iteration and 2 TFLOP/s per GPU."""
    metrics = {name: [2.0] * len(iterations) for name in METRICS}
    counts = {name: [None] * len(iterations) for name in ("consumed_samples", "consumed_tokens")}
    return pl.DataFrame(
        {
            "_training": [training] * len(iterations),
            "iteration": iterations,
            "elapsed_ms": [1000.0] * len(iterations),
            **counts,
            **metrics,
        },
        schema_overrides={
            "_training": pl.UInt32,
            "iteration": pl.Int64,
            **dict.fromkeys(counts, pl.Int64),
            **dict.fromkeys(metrics, pl.Float32),
        },
    )


def seconds(entries: CurveEntries, training: int = 0) -> float:
    frame = entries.frame.filter(pl.col("_training") == training)
    assert frame["tflop"].sum() == pytest.approx(2 * frame["seconds"].sum())
    return float(frame["seconds"].sum())


@pytest.mark.slow
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40, unique=True).map(sorted), st.data())
def test_parts(iterations: list[int], data: st.DataObject) -> None:
    entries, left = CurveEntries(10), iterations
    while left:
        part = data.draw(st.integers(1, len(left)))
        other = lines([5, 10], training=1) if left is iterations else lines([], training=1)
        entries.add(pl.concat([lines(left[:part]), other]))
        left = left[part:]
    first = min(iterations[0], iterations[1] - iterations[0]) if iterations[1:] else 1
    assert seconds(entries) == pytest.approx(first + iterations[-1] - iterations[0])
    assert seconds(entries, training=1) == pytest.approx(10)


def test_single_line_that_a_restart_repeats() -> None:
    entries = CurveEntries(10)
    entries.add(lines([10]))
    entries.cut(pl.DataFrame({"_training": [0], "_lowest": [10]}, schema_overrides={"_training": pl.UInt32}))
    entries.add(lines([10]))
    entries.add(lines([20, 30]))
    assert seconds(entries) == pytest.approx(30)
