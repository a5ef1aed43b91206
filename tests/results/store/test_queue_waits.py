"""The times that jobs waited in the queue, from polls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from store_rows import READ_AT, SOURCE

from airflow_megatron.results.store.batches import Batch
from airflow_megatron.results.store.reading import Results, queue_waits
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.snapshot_rows import write_batches

if TYPE_CHECKING:
    from pathlib import Path


def attempt(started: float | None) -> tuple[Any, ...]:
    return ("finished", "done", None, None, 9, "n1", None, 0, started, READ_AT + 900, 9.0, 8, 0.02)


@pytest.mark.parametrize(
    ("seen", "waited"),
    [
        ([(10, "PENDING", "Priority"), (40, "PENDING", "Resources"), (110, "RUNNING", "None")], 90.0),
        ([(10, "PENDING", "Dependency"), (80, "PENDING", "Resources")], 20.0),
        ([(10, "PENDING", "Dependency"), (90, "PENDING", "JobHeldUser")], 0.0),
        ([(110, "RUNNING", "None")], 0.0),
        ([(120, "PENDING", "Priority")], 0.0),
        ([], 0.0),
    ],
)
def test_the_wait_begins_when_it_is_the_jobs_turn(
    seen: list[tuple[int, str, str]], waited: float, tmp_path: Path
) -> None:
    store = SegmentStore(str(tmp_path))
    states = [Batch("states", SOURCE, READ_AT + at, [(state, why, "")]) for at, state, why in seen]
    other = SOURCE._replace(attempt=2, job_id="8")
    ends = [
        Batch("attempts", SOURCE, READ_AT + 900, [attempt(READ_AT + 100)]),
        Batch("attempts", other, READ_AT + 900, [attempt(None)]),
    ]
    write_batches(store, [*states, *ends])
    assert queue_waits(Results(store, "s")) == {("p", "pretrain", 1): pytest.approx(waited)}


def test_a_sweep_of_which_nothing_is_stored_has_no_waits(tmp_path: Path) -> None:
    assert queue_waits(Results(SegmentStore(str(tmp_path)), "s")) == {}
