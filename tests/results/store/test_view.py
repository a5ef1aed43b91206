"""The incremental view of a sweep for the pages equals a view computed from the complete store."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from store_rows import READ_AT, SOURCE, iterations, record

from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.compaction import compact
from airflow_megatron.results.store.reading import Results
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.snapshot_rows import write_batches
from airflow_megatron.results.store.view import Picture, SweepView

if TYPE_CHECKING:
    from collections.abc import Sequence

FRAMES = ("trainings", "repeated", "validations", "attempts", "states", "points")


@pytest.fixture
def store() -> SegmentStore:
    return SegmentStore(f"memory://{uuid.uuid4().hex}")


def other(point: str, **changes: Any) -> Source:
    return SOURCE._replace(point=point, log=f"/r/{point}/{changes}", **changes)


def curve(picture: Picture, point: str = "p") -> pl.DataFrame:
    return picture.curves([point]).drop("_training")


def row(picture: Picture, point: str = "p") -> dict[str, Any]:
    (found,) = picture.trainings.filter(pl.col("point") == point).iter_rows(named=True)
    return found


def agrees(view: SweepView) -> Picture:
    """Return the picture; check that it is that of one which begins now."""
    picture = view.picture()
    whole = SweepView(view._store, view._sweep, buckets=view._buckets).picture()
    for name in FRAMES:
        assert_frame_equal(getattr(picture, name), getattr(whole, name), check_row_order=False)
    for point in picture.trainings["point"].unique():
        assert_frame_equal(curve(picture, point), curve(whole, point), check_column_order=False)
    return picture


@pytest.mark.parametrize("samples", [4, 10**18])
def test_numbers_too_large_are_missing(store: SegmentStore, samples: int) -> None:
    large = record(1)._replace(global_batch_size=10**14, consumed_samples=samples)
    write_batches(store, [iterations(1)._replace(rows=[large]), iterations(3, source=other("q"))])
    picture = SweepView(store, "s").picture()
    assert row(picture)["global_batch_size"] is None
    assert row(picture)["loss"] == 9.0
    assert row(picture)["seq_length"] == (32 if samples == 4 else None)
    assert row(picture, "q")["global_batch_size"] == 4


@pytest.mark.slow
def test_what_is_new_is_put_behind_what_is_known(store: SegmentStore) -> None:
    view = SweepView(store, "s", buckets=100)
    assert view.picture().trainings.height == 0
    for first in (1, 4, 5):
        write_batches(
            store, [iterations(*range(first, first + 2), source=other(point)) for point in ("a", "b")]
        )
        picture = agrees(view)
    assert curve(picture, "a")["iteration"].to_list() == [1, 2, 4, 5, 6]
    assert curve(picture, "a")["loss_min"].to_list() == [9.0, 8.0, 6.0, 5.0, 4.0]
    assert view.picture() is picture
    write_batches(store, [iterations(7, source=other("b"))])
    assert view.picture().generation == picture.generation + 1
    assert (row(view.picture(), "b")["iteration"], row(view.picture(), "a")["iteration"]) == (7, 6)


@pytest.mark.slow
def test_a_long_curve_keeps_its_extremes_and_sums(store: SegmentStore) -> None:
    view = SweepView(store, "s", buckets=10)
    for first in range(1, 1000, 100):
        lines = [record(number)._replace(elapsed_ms=500.0) for number in range(first, first + 100)]
        write_batches(store, [Batch("iterations", SOURCE, READ_AT, lines, [one.iteration for one in lines])])
        entries = curve(view.picture())
        assert 1 <= entries.height <= 20
    assert (entries["loss_max"][0], entries["loss_min"].min()) == (9.0, -990.0)
    assert (entries["begin"][0], entries["iteration"][-1], row(view.picture())["iteration"]) == (
        1,
        1000,
        1000,
    )
    assert entries["seconds"].sum() == pytest.approx(500)
    assert row(view.picture())["elapsed_ms"] == 500


@pytest.mark.slow
def test_a_restart_takes_back_the_end_of_the_curve(store: SegmentStore) -> None:
    view = SweepView(store, "s", buckets=100)
    write_batches(store, [iterations(*range(1, 9))])
    view.picture()
    write_batches(store, [iterations(5, 6, source=other("p", attempt=2, job_id="8"))])
    picture = agrees(view)
    assert curve(picture)["iteration"].to_list() == [1, 2, 3, 4, 5, 6]
    assert picture.repeated["repeated"].to_list() == [0.5, 0]
    assert picture.repeated["begin"].to_list() == [1, 5]
    write_batches(store, [iterations(7, source=other("p", attempt=2, job_id="8"))])
    assert row(agrees(view))["iteration"] == 7


@pytest.mark.slow
def test_an_attempt_that_is_taken_back_whole(store: SegmentStore) -> None:
    view = SweepView(store, "s", buckets=100)
    write_batches(store, [iterations(1, 2), iterations(3, 4, source=other("p", attempt=2, job_id="8"))])
    view.picture()
    write_batches(store, [iterations(1, source=other("p", attempt=3, job_id="9"))])
    picture = agrees(view)
    assert curve(picture)["iteration"].to_list() == [1]
    assert picture.repeated["repeated"].to_list() == [1, 1, 0]
    assert picture.repeated["begin"].to_list() == [None, None, 1]


@pytest.mark.slow
def test_what_is_read_again_changes_nothing(store: SegmentStore) -> None:
    view = SweepView(store, "s")
    write_batches(store, [iterations(1, 2, 3)])
    before = view.picture()
    write_batches(store, [iterations(2, 3, time=READ_AT + 50)])
    assert_frame_equal(curve(view.picture()), curve(before))
    assert view.picture().repeated["repeated"].to_list() == [0]


@pytest.mark.slow
def test_merged_segments_bring_nothing_new(store: SegmentStore) -> None:
    view = SweepView(store, "s")
    for number in (1, 2, 3):
        write_batches(store, [iterations(number)])
    before = view.picture()
    compact(store, "s")
    assert view.picture() is before
    write_batches(store, [iterations(4)])
    assert curve(agrees(view))["iteration"].to_list() == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_rebuild_is_read_anew(store: SegmentStore) -> None:
    view = SweepView(store, "s")
    write_batches(store, [iterations(1, 5)])
    view.picture()
    write_batches(store, [iterations(2, 3), Batch("gaps", SOURCE, READ_AT + 9, [("rebuilt",)], [0])])
    assert curve(agrees(view))["iteration"].to_list() == [1, 2, 3, 5]


@pytest.mark.slow
def test_validations_that_a_later_attempt_repeats_are_dropped(store: SegmentStore) -> None:
    view = SweepView(store, "s")

    def check(iteration: int, loss: float, source: Source, offset: int) -> Batch:
        line = (iteration, "validation", None, False, loss, None, None)
        return Batch("validations", source, READ_AT, [line], [offset])

    write_batches(store, [iterations(*range(1, 9)), check(4, 2.0, SOURCE, 401), check(8, 1.0, SOURCE, 801)])
    assert view.picture().validations["loss"].to_list() == [2.0, 1.0]
    again = other("p", attempt=2, job_id="8")
    write_batches(store, [iterations(5, 6, source=again)])
    assert agrees(view).validations["loss"].to_list() == [2.0]
    assert row(view.picture())["validation_loss"] == 2.0
    write_batches(store, [iterations(7, 8, source=again), check(8, 0.5, again, 801)])
    assert agrees(view).validations["loss"].to_list() == [2.0, 0.5]


@pytest.mark.slow
def test_the_first_of_several_validation_sets_is_shown_as_in_reports(store: SegmentStore) -> None:
    def check(dataset: str, loss: float, offset: int, source: Source = SOURCE) -> Batch:
        line = (4, "validation", dataset, False, loss, None, None)
        return Batch("validations", source, READ_AT, [line], [offset])

    view = SweepView(store, "s")
    write_batches(store, [iterations(*range(1, 5)), check("wiki", 2.0, 401), check("code", 1.0, 402)])
    assert agrees(view).validations["loss"].to_list() == [2.0]
    write_batches(store, [check("wiki", 2.5, 501), check("code", 1.5, 502)])
    assert agrees(view).validations["loss"].to_list() == [2.5]
    again = other("p", attempt=2, job_id="8")
    write_batches(store, [iterations(4, source=again), check("code", 0.5, 402, again)])
    assert agrees(view).validations["loss"].to_list() == [0.5]


@st.composite
def logs(draw: st.DrawFn) -> list[list[Batch]]:
    """Attempts of two trainings that begin anywhere, in segments that are cut anywhere."""
    attempts: list[list[Batch]] = []
    for point in ("a", "b"):
        highest = 0
        for attempt in range(1, draw(st.integers(1, 4)) + 1):
            first = draw(st.integers(1, highest + 1))
            highest = first + draw(st.integers(0, 12))
            source = other(point, attempt=attempt, job_id=str(attempt))
            numbers = range(first, highest + 1)
            size = draw(st.integers(1, 6))
            attempts.append(
                [iterations(*numbers[at : at + size], source=source) for at in range(0, len(numbers), size)]
            )
    batches = [batch for attempt in attempts for batch in attempt]
    size = draw(st.integers(1, 5))
    return [batches[at : at + size] for at in range(0, len(batches), size)]


@pytest.mark.slow
@given(logs())
def test_the_view_equals_a_reading_of_the_whole_store(segments: Sequence[Sequence[Batch]]) -> None:
    store = SegmentStore(f"memory://{uuid.uuid4().hex}")
    view = SweepView(store, "s", buckets=1000)
    for batches in segments:
        write_batches(store, batches)
        picture = view.picture()
    whole = Results(store, "s").iterations
    for point in ("a", "b"):
        kept = whole.filter(~pl.col("superseded"), pl.col("point") == point)
        assert curve(picture, point)["iteration"].to_list() == sorted(kept["iteration"].to_list())
        lost = whole.filter(pl.col("point") == point).group_by("attempt").agg(pl.col("superseded").mean())
        found = picture.repeated.filter(pl.col("point") == point)
        assert dict(found.select("attempt", "repeated").iter_rows()) == pytest.approx(dict(lost.iter_rows()))
