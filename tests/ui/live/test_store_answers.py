"""A store that does not answer costs the API server one request, not every one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from stored_training import SWEEP, source, train

from airflow_megatron.results.store.segments import SegmentStore, StoreError
from airflow_megatron.ui.live import store_answers, stored
from airflow_megatron.ui.live.store_answers import StoreAnswers
from airflow_megatron.ui.live.stored import StoredSweep, ended_gpu_hours

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SegmentStore:
    monkeypatch.setattr(stored, "default_root", lambda: str(tmp_path))
    monkeypatch.setattr(stored, "_PATIENCE", 0)
    found = SegmentStore(str(tmp_path))
    train(found, source("pretrain"), range(1, 4))
    return found


def test_a_store_that_has_failed_is_not_asked_again_at_once(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fail(_: SegmentStore, sweep: str, tables: object = ()) -> list[object]:
        asked.append(sweep)
        raise StoreError("connection refused")

    with monkeypatch.context() as away:
        away.setattr(SegmentStore, "segments", fail)
        with pytest.raises(StoreError, match="connection refused"):
            StoredSweep(SWEEP)
        for other in (SWEEP, "other"):
            with pytest.raises(StoreError, match="does not answer"):
                StoredSweep(other)
            with pytest.raises(StoreError, match="does not answer"):
                ended_gpu_hours(other)
        assert asked == [SWEEP]
        StoreAnswers.of(store.root)._failed_until -= store_answers.PAUSE_S
        with pytest.raises(StoreError, match="connection refused"):
            ended_gpu_hours(SWEEP)
        assert asked == [SWEEP, SWEEP]
        StoreAnswers.of(store.root)._failed_until -= store_answers.PAUSE_S
        away.setattr(SegmentStore, "segments", lambda *_: [])
        StoredSweep(SWEEP)


def test_no_request_waits_behind_a_read_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answered = threading.Event(), threading.Event()

    def hang(*_: object) -> list[object]:
        begun.set()
        answered.wait(60)
        return []

    monkeypatch.setattr(SegmentStore, "segments", hang)
    monkeypatch.setattr(store_answers, "LONGEST_S", 0.0)
    first = threading.Thread(target=StoredSweep, args=(SWEEP,))
    first.start()
    try:
        assert begun.wait(60)
        with pytest.raises(StoreError, match="does not answer"):
            StoredSweep(SWEEP)
        with pytest.raises(StoreError, match="does not answer"):
            ended_gpu_hours("other")
    finally:
        answered.set()
        first.join()
    StoredSweep(SWEEP)
