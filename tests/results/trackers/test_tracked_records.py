"""The records that trackers receive: each training is one series with strictly increasing steps."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_rows import READ_AT, SOURCE, iterations

from airflow_megatron.results.readings.sweep_jobs import SweepJob
from airflow_megatron.results.store.batches import Batch
from airflow_megatron.results.store.reading import Results
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.snapshot_rows import write_batches
from airflow_megatron.results.trackers.pushing import Pushed, push_sweep
from airflow_megatron.results.trackers.tracked_records import QUIET_S, SETTLE_S, SweepRecords, metric_name
from airflow_megatron.spec.model.schema import TrackerSection
from airflow_megatron.spec.trackers.tracker import (
    TRACKERS,
    Tracker,
    TrackerAccess,
    TrackerError,
    TrackerSession,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow_megatron.spec.trackers.tracker import TrackedRecord, TrackedTraining

SOON, LATER = READ_AT + 1, READ_AT + SETTLE_S + 1
SECOND = SOURCE._replace(attempt=2, job_id="8", log="/r/s/p/logs/pretrain-2.out")
BRANCH = SOURCE._replace(stage="decay", job_id="9", log="/r/s/p/decay/logs/decay-1.out")
ENDED = ("finished", "done", None, None, 9, "n1", None, 0, READ_AT - 9, READ_AT, 9.0, 8, 0.02)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(str(tmp_path / "store"))


def steps(
    store: SegmentStore, now: float, after: int | None = None, stage: str = "pretrain", **parents: str
) -> list[int]:
    records = SweepRecords(Results(store, "s"), {("p", name): above for name, above in parents.items()}, now)
    return [record.step for record in records.after("p", stage, after)]


@pytest.mark.slow
def test_the_newest_iteration_is_held_back_until_nothing_more_belongs_to_it(store: SegmentStore) -> None:
    write_batches(store, [iterations(1, 2, 3)])
    assert steps(store, SOON) == []  # its validation may not be written yet
    assert steps(store, LATER) == [1, 2]
    assert steps(store, READ_AT + QUIET_S + 1) == [1, 2, 3]
    write_batches(store, [Batch("attempts", SOURCE, READ_AT, [ENDED])])
    assert steps(store, LATER) == [1, 2, 3]
    assert steps(store, LATER, after=2) == [3]
    assert steps(store, LATER, after=7) == []


def test_what_a_rollback_repeats_comes_once(store: SegmentStore) -> None:
    write_batches(store, [iterations(1, 2, 3, 4), iterations(3, 4, 5, 6, source=SECOND)])
    assert steps(store, LATER) == [1, 2, 3, 4, 5]
    assert steps(store, LATER, after=4) == [5]


@pytest.mark.slow
def test_a_branch_begins_with_its_trunk(store: SegmentStore) -> None:
    write_batches(store, [iterations(*range(1, 9)), iterations(5, 6, 7, source=BRANCH)])
    assert steps(store, LATER, stage="decay", decay="pretrain") == [1, 2, 3, 4, 5, 6]
    assert steps(store, LATER, stage="decay") == [5, 6]
    # circular descriptions are handled, too
    assert steps(store, LATER, stage="decay", decay="pretrain", pretrain="decay") == [1, 2, 3, 4, 5, 6]


def test_a_validation_belongs_to_its_iteration(store: SegmentStore) -> None:
    rows = [(2, "validation", None, False, 4.5, "{}", "{}"), (3, "test", "wiki", True, 4.0, "{}", "{}")]
    write_batches(store, [iterations(1, 2, 4, 5), Batch("validations", SOURCE, READ_AT, rows, [250, 350])])
    found = {
        record.step: record.values
        for record in SweepRecords(Results(store, "s"), {}, LATER).after("p", "pretrain", None)
    }
    assert [*found] == [1, 2, 3, 4]
    assert found[2]["validation_loss"] == 4.5
    assert found[3] == {"test_loss wiki": 4.0}
    assert found[1]["loss"] == 9.0
    assert found[1]["mtp loss"] == 8.0
    assert found[1]["consumed_tokens"] == 128.0
    assert found[1]["attempt"] == 1.0


@pytest.mark.slow
@given(st.text(max_size=300))
def test_names_from_logs_are_names_for_every_tracker(text: str) -> None:
    name = metric_name(text)
    assert 0 < len(name) <= 100
    assert name == name.strip()
    assert not name.startswith(("_", "."))
    assert all(char.isascii() and (char.isalnum() or char in "_.- ") for char in name)


class _Memory(Tracker):
    """Keeps records, and fails on request of a test."""

    def __init__(self, most: float = float("inf")) -> None:
        self.kept: dict[str, list[TrackedRecord]] = {}
        self.most = most
        self.finished: list[str] = []

    def open(self, access: TrackerAccess, project: str) -> TrackerSession:
        tracker = self

        class Session(TrackerSession):
            def last_step(self, training: TrackedTraining) -> int | None:
                kept = tracker.kept.get(training.key)
                return kept[-1].step if kept else None

            def push(self, training: TrackedTraining, records: Sequence[TrackedRecord]) -> None:
                for record in records:
                    if sum(map(len, tracker.kept.values())) >= tracker.most:
                        raise TrackerError("full")
                    tracker.kept.setdefault(training.key, []).append(record)

            def finish(self, training: TrackedTraining) -> None:
                tracker.finished.append(training.key)

        return Session()


JOBS = (
    SweepJob("s.p.pretrain", "p", "pretrain", "train", "pretrain", "/r/s/p"),
    SweepJob("s.p.decay", "p", "decay", "train", "decay", "/r/s/p/decay", "pretrain"),
)


@pytest.mark.slow
def test_an_interrupted_push_is_continued_wherever_it_stopped(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batches(store, [iterations(*range(1, 9)), iterations(5, 6, 7, source=BRANCH)])
    section = TrackerSection.model_construct(tracker="memory", connection="any", project=None)

    def push() -> Pushed:
        return push_sweep(store, "s", JOBS, section, TrackerAccess(), ended=True)

    for most in (0, 1, 7, 8, 9, 14):
        tracker = _Memory(most)
        monkeypatch.setitem(TRACKERS.objects, "memory", tracker)
        with pytest.raises(TrackerError):
            push()
        tracker.most = float("inf")
        assert push().records == 15 - most
        assert push() == Pushed(0, 0)
        assert {key: [record.step for record in kept] for key, kept in tracker.kept.items()} == {
            "s/p/pretrain": [*range(1, 9)],
            "s/p/decay": [*range(1, 8)],
        }


@pytest.mark.slow
def test_evaluations_are_a_run_of_their_own_once_all_are_known(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = _Memory()
    monkeypatch.setitem(TRACKERS.objects, "memory", tracker)
    section = TrackerSection.model_construct(tracker="memory", connection="any", project=None)
    of = SOURCE._replace(attempt=0, job_id="", log="")

    def figure(iteration: int, metric: str, value: float, stderr: float | None = None) -> tuple[Any, ...]:
        return iteration, "", "arc@25", metric, "none", value, stderr, 25, 100, True, 0.25, "1"

    now = time.time()
    write_batches(store, [iterations(1, 2), Batch("evaluations", of, now, [figure(20, "acc", 0.5)])])
    for by_hand in (False, True):
        push_sweep(store, "s", JOBS, section, TrackerAccess(), by_hand=by_hand)
    monkeypatch.setattr(time, "time", lambda: now + QUIET_S + 1)
    push_sweep(store, "s", JOBS, section, TrackerAccess())
    assert "s/p/pretrain evaluations" not in tracker.kept
    rows = [figure(10, "acc", 0.4, 0.01), figure(10, "acc_norm", float("nan"))]
    write_batches(store, [Batch("evaluations", of, READ_AT, rows)])
    for how in ({"by_hand": True}, {"ended": True}):
        push_sweep(store, "s", JOBS, section, TrackerAccess(), **how)
        assert [(one.step, one.values) for one in tracker.kept["s/p/pretrain evaluations"]] == [
            (10, {"arc_25 acc": 0.4, "arc_25 acc stderr": 0.01}),
            (20, {"arc_25 acc": 0.5}),
        ]


@pytest.mark.slow
@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=4))
def test_steps_rise_strictly_whatever_attempts_do(
    tmp_path_factory: Any, attempts: list[tuple[int, int]]
) -> None:
    store = SegmentStore(str(tmp_path_factory.mktemp("store")))
    tracker = _Memory()
    TRACKERS.objects["memory"] = tracker
    section = TrackerSection.model_construct(tracker="memory", connection="any", project=None)
    newest = 0
    try:
        for number, (begin, count) in enumerate(attempts, start=1):
            source = SOURCE._replace(attempt=number, job_id=str(number), log=f"/log-{number}")
            write_batches(store, [iterations(*range(begin, begin + count), source=source)])
            push_sweep(store, "s", JOBS, section, TrackerAccess(), ended=number == len(attempts))
            newest = max(newest, begin + count - 1)
    finally:
        del TRACKERS.objects["memory"]
    kept = [record.step for record in tracker.kept.get("s/p/pretrain", ())]
    assert all(one < two for one, two in itertools.pairwise(kept))
    last = attempts[-1][0] + attempts[-1][1] - 1
    assert kept[-1] >= last
    assert kept[-1] <= newest
