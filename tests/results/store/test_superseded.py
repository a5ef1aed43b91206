"""Repeated iterations are resolved as in the reader of logs, and no iteration is lost."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_rows import READ_AT, SOURCE, record

from airflow_megatron.megatron.logs.log_lines import (
    CheckpointEvent,
    CheckpointRecord,
    IterationRecord,
    ValidationRecord,
    merge_iterations,
)
from airflow_megatron.results.store.batches import Batch
from airflow_megatron.results.store.compaction import compact
from airflow_megatron.results.store.frames import frame_of
from airflow_megatron.results.store.job_rows import batches_of_records
from airflow_megatron.results.store.reading import load
from airflow_megatron.results.store.segments import SegmentStore, new_writer

if TYPE_CHECKING:
    from airflow_megatron.megatron.logs.log_lines import Record

LINE = st.one_of(
    st.integers(1, 8).map(record),
    st.integers(0, 8).map(lambda iteration: CheckpointRecord(CheckpointEvent.LOADED, iteration, "/c")),
    st.just(CheckpointRecord(CheckpointEvent.RANDOM_START, None, None)),
    st.just(CheckpointRecord(CheckpointEvent.SAVED, 3, "/c")),
    st.integers(1, 8).map(
        lambda iteration: ValidationRecord(iteration, "validation", None, False, {"lm loss": 1.0}, {})
    ),
)
ATTEMPTS = st.lists(st.lists(LINE, max_size=12), max_size=4)


def logged(attempts: list[list[Record]]) -> list[Batch]:
    """Return the rows of attempts, a batch for each line."""
    return [
        batch
        for number, lines in enumerate(attempts, 1)
        for at, line in enumerate(lines)
        for batch in batches_of_records(
            SOURCE._replace(attempt=number, job_id=str(9 + number), log=f"/r/{number}.out"),
            READ_AT + number,
            [(10 * at, line)],
        )
    ]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(ATTEMPTS, st.data())
def test_the_store_agrees_with_the_reader_of_logs(attempts: list[list[Record]], data: st.DataObject) -> None:
    """Several writers, in any order, some of them twice, with segments that were cut and merges in between."""
    store = SegmentStore(f"memory://{uuid.uuid4().hex}")
    batches = logged(attempts)
    repeated = data.draw(st.lists(st.sampled_from(batches), max_size=5)) if batches else []
    later = [batch._replace(time=batch.time + 100) for batch in repeated]  # it was read again
    for number, batch in enumerate(data.draw(st.permutations([*batches, *later]))):
        frame = frame_of(batch.table, [batch])
        segment = store.write("s", frame, batch.table, new_writer(), number)
        if data.draw(st.integers(0, 5)) == 0:  # one more is cut by a crash
            fs, folder = store._folder("s")
            content = fs.cat_file(f"{folder}/{segment.name}")
            cut = f"{batch.table}.s99999999.{new_writer()}.{segment.checksum:08x}.parquet"
            fs.pipe_file(f"{folder}/{cut}", content[: data.draw(st.integers(0, len(content) - 1))])
    if data.draw(st.booleans()):
        compact(store, "s")
    results = load("s", root=store.root)
    lines = [line for attempt in attempts for line in attempt]
    read = results.iterations
    assert read["iteration"].to_list() == [
        line.iteration for line in lines if isinstance(line, IterationRecord)
    ], "all rows are there, in the order of the logs"
    kept = read.filter(~read["superseded"])
    assert kept["iteration"].to_list() == [line.iteration for line in merge_iterations(lines)]
    assert kept["attempt"].is_sorted()
    assert results.validations.height == sum(isinstance(line, ValidationRecord) for line in lines)


def test_a_validation_of_an_iteration_that_was_repeated_is_superseded() -> None:
    store = SegmentStore(f"memory://{uuid.uuid4().hex}")
    loss = ValidationRecord(4, "validation", None, False, {"lm loss": 1.0}, {})
    loaded = CheckpointRecord(CheckpointEvent.LOADED, 2, "/c")
    attempts: list[list[Record]] = [[record(3), record(4), loss], [loaded, record(3), record(4), loss]]
    for number, batch in enumerate(logged(attempts)):
        store.write("s", frame_of(batch.table, [batch]), batch.table, new_writer(), number)
    assert load("s", root=store.root).validations["superseded"].to_list() == [True, False]


def test_a_run_directory_that_was_made_anew_begins_with_attempt_1_again() -> None:
    """Slurm's ids determine which attempt is later."""
    store = SegmentStore(f"memory://{uuid.uuid4().hex}")
    for job_id, attempt, iterations in (("9", 1, (1, 2)), ("10", 2, (3, 4)), ("11", 1, (1, 2))):
        source = SOURCE._replace(job_id=job_id, attempt=attempt)
        rows = [record(iteration) for iteration in iterations]
        batch = Batch("iterations", source, READ_AT, rows, [10 * row.iteration for row in rows])
        store.write("s", frame_of("iterations", [batch]), "iterations", new_writer(), int(job_id))
    read = load("s", root=store.root).iterations
    assert read["superseded"].to_list() == [True, True, True, True, False, False]
