"""The writer keeps up or reports missing rows, and never blocks the threads that add rows."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from store_rows import SOURCE, iterations

from airflow_megatron.results.store import writer as writer_module
from airflow_megatron.results.store.reading import load
from airflow_megatron.results.store.segments import SegmentStore, StoreError
from airflow_megatron.results.store.writer import ResultWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0


@pytest.fixture
def store() -> SegmentStore:
    return SegmentStore(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def made() -> Iterator[Callable[..., ResultWriter]]:
    writers: list[ResultWriter] = []

    def make(*words: Any, **options: Any) -> ResultWriter:
        writers.append(ResultWriter(*words, **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


@pytest.mark.slow
def test_rows_are_written_in_time(store: SegmentStore, made: Callable[..., ResultWriter]) -> None:
    writer = made(store, flush_s=0.05)
    assert writer.put(iterations(1, 2))
    end = time.monotonic() + PATIENCE
    while not store.segments("s") and time.monotonic() < end:
        time.sleep(0.02)
    assert load("s", root=store.root).iterations["iteration"].to_list() == [1, 2]


def test_rows_that_cannot_be_stored_cost_only_those_of_their_log(
    store: SegmentStore, made: Callable[..., ResultWriter], caplog: pytest.LogCaptureFixture
) -> None:
    writer = made(store, flush_s=600)
    good, bad = iterations(1, 2), iterations(3)
    bad = bad._replace(source=bad.source._replace(log="/hostile"), rows=[("no", "iteration")])
    for batch in (good, bad, iterations(4)):
        writer.put(batch)
    assert writer.drain(PATIENCE)
    assert load("s", root=store.root).iterations["iteration"].to_list() == [1, 2, 4]
    assert "/hostile cannot be stored" in caplog.text


def test_the_end_of_a_job_does_not_wait_for_the_clock(
    store: SegmentStore, made: Callable[..., ResultWriter]
) -> None:
    writer = made(store, flush_s=600)
    writer.put(iterations(1))
    assert writer.drain(PATIENCE)
    writer.put(iterations(2))
    writer.flush()
    end = time.monotonic() + PATIENCE
    while len(store.segments("s")) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    assert len(store.segments("s")) == 2


@pytest.mark.slow
def test_a_store_that_fails_is_not_asked_all_the_time_by_who_waits(
    store: SegmentStore, made: Callable[..., ResultWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def fails(self: SegmentStore, *words: Any) -> None:
        asked.append(time.monotonic())
        raise StoreError("it is away")

    monkeypatch.setattr(SegmentStore, "write", fails)
    monkeypatch.setattr(writer_module, "ASK_AGAIN_S", 0.2)
    writer = made(store, flush_s=600)
    writer.put(iterations(1))
    began = time.monotonic()
    calls, seconds = 0, 0.7
    while len(asked) < 3:  # a busy machine needs longer
        assert not writer.drain(seconds)
        calls += 1
        seconds *= 2
        assert seconds < PATIENCE
    # each call asks once immediately
    assert len(asked) <= (time.monotonic() - began) / 0.2 + calls


@pytest.mark.slow
def test_who_waits_does_not_pause_while_the_store_works(
    store: SegmentStore, made: Callable[..., ResultWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that come during a write are written right after it."""
    begun, go_on, write = threading.Event(), threading.Event(), SegmentStore.write

    def held(self: SegmentStore, *words: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return write(self, *words)

    monkeypatch.setattr(SegmentStore, "write", held)
    writer = made(store, flush_s=600)
    writer.put(iterations(1))
    writer.flush()
    assert begun.wait(PATIENCE)
    writer.put(iterations(2))
    pauses: list[float] = []
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=pauses.append)
    monkeypatch.setattr(writer_module, "time", clock)
    threading.Timer(0.2, go_on.set).start()
    assert writer.drain(PATIENCE)
    assert not pauses


def test_a_store_that_hangs_never_blocks_and_what_is_left_out_is_noted(
    store: SegmentStore,
    made: Callable[..., ResultWriter],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hangs, answers = threading.Event(), threading.Event()
    write = SegmentStore.write

    def hanging(*words: Any, **options: Any) -> Any:
        hangs.set()
        answers.wait(PATIENCE)
        return write(*words, **options)

    monkeypatch.setattr(SegmentStore, "write", hanging)
    writer = made(store, flush_s=0.01, most_rows=50)
    taken = [writer.put(iterations(1))]
    assert hangs.wait(PATIENCE)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        taken += [writer.put(iterations(number)) for number in range(2, 201)]
    assert time.monotonic() - began < PATIENCE / 2
    assert taken == [True] * 50 + [False] * 150
    assert writer.dropped_rows == 150
    assert caplog.text.count("does not keep up") == 1
    answers.set()
    assert writer.drain(PATIENCE)
    results = load("s", root=store.root)
    assert results.iterations["iteration"].to_list() == list(range(1, 51))
    assert results.gaps["offset"].to_list() == [5100], "from where on rows are missing"
    assert writer.put(iterations(300)), "there is room again"


@pytest.mark.slow
def test_a_store_that_fails_gets_the_rows_later(
    store: SegmentStore,
    made: Callable[..., ResultWriter],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [StoreError("s3 does not answer")] * 2
    write = SegmentStore.write

    def failing(*words: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return write(*words, **options)

    monkeypatch.setattr(SegmentStore, "write", failing)
    writer = made(store, flush_s=0.01)
    with caplog.at_level(logging.WARNING):
        writer.put(iterations(1))
        writer.put(iterations(2))
        assert writer.drain(PATIENCE)
    assert load("s", root=store.root).iterations["iteration"].to_list() == [1, 2]
    assert "s3 does not answer" in caplog.text
    assert writer.dropped_rows == 0


def test_rows_that_cannot_be_stored_do_not_hold_up_others(
    store: SegmentStore, made: Callable[..., ResultWriter]
) -> None:
    writer = made(store, flush_s=600)
    writer.put(iterations(1)._replace(rows=[("nonsense",)]))
    writer.put(iterations(2, source=SOURCE._replace(sweep="other")))
    assert writer.drain(PATIENCE)
    assert load("other", root=store.root).iterations.height == 1


def test_its_own_segments_are_merged(
    store: SegmentStore, made: Callable[..., ResultWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MERGE_AT", 3)
    writer = made(store, flush_s=600)
    for number in range(1, 8):
        writer.put(iterations(number))
        assert writer.drain(PATIENCE)
    assert [segment.merged for segment in store.segments("s")] == [True, True, False]
    assert load("s", root=store.root).iterations["iteration"].to_list() == list(range(1, 8))


def test_after_its_end_it_takes_nothing(store: SegmentStore, made: Callable[..., ResultWriter]) -> None:
    writer = made(store)
    writer.put(iterations(1))
    writer.close(PATIENCE)
    assert not writer.put(iterations(2))
    assert load("s", root=store.root).iterations.height == 1
