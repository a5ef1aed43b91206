"""Segments are written atomically, and incomplete segments are ignored."""

from __future__ import annotations

import logging
import uuid
import zlib
from typing import TYPE_CHECKING

import pytest
from store_rows import SOURCE, iterations

from airflow_megatron.results.store.compaction import compact
from airflow_megatron.results.store.frames import frame_of
from airflow_megatron.results.store.reading import load
from airflow_megatron.results.store.segments import SegmentStore, StoreError, folder_name, new_writer
from airflow_megatron.results.store.view import SweepView

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "results") if request.param == "file" else f"memory://{uuid.uuid4().hex}"


def written(store: SegmentStore, *numbers: int, sweep: str = "s") -> list[str]:
    writer = new_writer()
    return [
        store.write(sweep, frame_of("iterations", [iterations(number)]), "iterations", writer, number).name
        for number in numbers
    ]


def iterations_read(root: str) -> list[int]:
    return load("s", root=root).iterations["iteration"].to_list()


def test_a_store_that_is_not_there_is_empty(root: str) -> None:
    results = load("s", root=root)
    assert results.iterations.height == results.points.height == results.states.height == 0
    assert SegmentStore(root).sweeps() == []


def test_rows_come_back_with_their_types(root: str) -> None:
    store = SegmentStore(root)
    written(store, 1)
    (row,) = load("s", root=root).iterations.to_dicts()
    assert row["sweep"] == SOURCE.sweep
    assert row["offset"] == 100
    assert row["loss"] == 9.0
    assert row["consumed_tokens"] == 4 * SOURCE.seq_length
    assert row["extra"] == '{"params norm":7}'
    assert row["other_losses"] == '{"mtp loss":8.0}'
    assert row["time"].isoformat() == "2026-11-22T10:00:00+00:00"
    assert not row["superseded"]
    assert store.sweeps() == ["s"]


@pytest.mark.parametrize("part", [0.0, 0.3, 0.999])
def test_a_cut_segment_is_passed_over(root: str, part: float, caplog: pytest.LogCaptureFixture) -> None:
    store = SegmentStore(root)
    names = written(store, 1, 2)
    fs, folder = store._folder("s")
    content = fs.cat_file(f"{folder}/{names[0]}")
    fs.pipe_file(f"{folder}/{names[0]}", content[: int(part * len(content))])
    with caplog.at_level(logging.WARNING):
        assert iterations_read(root) == [2]
    assert names[0] in caplog.text
    compact(store, "s")
    assert names[0] in {segment.name for segment in store.segments("s")}, (
        "what is damaged is left for a person"
    )


def test_foreign_files_are_passed_over(root: str) -> None:
    store = SegmentStore(root)
    written(store, 1)
    fs, folder = store._folder("s")
    valid = b"PAR1 nonsense PAR1"
    for name in ("notes.txt", ".tmp-ab", f"iterations.s00000001.{'a' * 12}.{zlib.crc32(valid):08x}.parquet"):
        fs.pipe_file(f"{folder}/{name}", valid)
    assert iterations_read(root) == [1]


@pytest.mark.slow
def test_an_interrupted_merge_changes_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SegmentStore(root)
    names = written(store, 1, 2, 3)
    monkeypatch.setattr(SegmentStore, "remove", lambda *_: None)  # it died before it removed them
    compact(store, "s")
    monkeypatch.undo()
    assert len(store.segments("s")) == 4
    assert iterations_read(root) == [1, 2, 3]
    compact(store, "s")
    assert len(store.segments("s")) == 1
    assert iterations_read(root) == [1, 2, 3]
    store.remove("s", names)  # they are gone: no harm


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../../etc", "ü \n", "a%2Fb", "\0"])
def test_names_are_one_part_of_a_path(name: str) -> None:
    folder = folder_name(name)
    assert folder not in ("", ".", "..")
    assert not set("/\0\n") & set(folder)


def test_names_stay_apart() -> None:
    names = ["a/b", "a%2Fb", "A", "a", ".a", "%2Ea", "_", ""]
    assert len({folder_name(name) for name in names}) >= len(names) - 1  # "" is no sweep's name


def test_an_unknown_protocol_is_an_error_with_a_name() -> None:
    with pytest.raises(StoreError, match="results_store"):
        SegmentStore("nosuch://bucket").segments("s")


@pytest.mark.parametrize(
    "root",
    [
        "memory://key:secret@host/bucket?token=secret",
        "nosuch://key:secret@host/bucket",
    ],
)
def test_messages_show_no_credentials(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, path: str, *__: object, **___: object) -> None:
        raise PermissionError(f"{path}: {root} is refused")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.ls", refuse)
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", refuse)
    store = SegmentStore(root)
    assert "secret" not in store.shown + SegmentStore(f"simplecache::{root}").shown
    for asked in (
        store.sweeps,
        lambda: store.segments("s"),
        lambda: store.size("s"),
        lambda: written(store, 1),
    ):
        with pytest.raises(StoreError) as raised:
            asked()
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__


def test_a_segment_that_is_listed_and_missing_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SegmentStore(str(tmp_path))
    names = written(store, 1, 2)
    folder = tmp_path / "s" / "store"
    (folder / names[0]).unlink()
    (folder / names[0]).symlink_to("/nonexistent/disk")  # or an object store's list that is late
    with caplog.at_level(logging.WARNING):
        assert iterations_read(str(tmp_path)) == [2]
    assert names[0] in caplog.text
    view = SweepView(store, "s")
    assert view.picture().trainings["iteration"].to_list() == [2]
    written(store, 3)
    assert view.picture().trainings["iteration"].to_list() == [3]


class Buckets:
    """An object store with the bucket ``results``."""

    protocol = ("s3", "s3a")
    entries: tuple[str, ...] = ()

    def invalidate_cache(self, path: str) -> None:
        """Do nothing."""

    def ls(self, path: str, detail: bool) -> list[str]:
        if path != "results":
            raise FileNotFoundError("The specified bucket does not exist")  # also for a key
        return list(self.entries)

    def isdir(self, path: str) -> bool:
        raise PermissionError("Forbidden")


@pytest.mark.parametrize("root", ["typo", "typo/of/me"])
def test_a_bucket_that_is_not_there_is_no_empty_store(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentStore, "_opened", lambda store: (Buckets(), store.root.removeprefix("s3://")))
    store = SegmentStore(f"s3://{root}")
    for read in (lambda: store.segments("s"), store.sweeps):
        with pytest.raises(StoreError, match=f"s3://{root} cannot be listed: there is no bucket typo"):
            read()
    store = SegmentStore("s3://results/of/me")
    assert store.segments("s") == store.sweeps() == []


def test_an_error_while_sweeps_are_listed_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Buckets, "entries", ("results/s",))
    monkeypatch.setattr(SegmentStore, "_opened", lambda _: (Buckets(), "results"))
    with pytest.raises(StoreError, match="s3://results cannot be listed: PermissionError"):
        SegmentStore("s3://results").sweeps()
