"""The lock of an index and the renaming of its files; ``tests/trainer`` tests trainings that share them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "Megatron-LM"))

from megatron_core_trainer.data import index_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTER = Path(index_cache.__file__).parents[2] / "upstream_index_cache.py"
INDEX = "0123456789abcdef"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The lock of an index whose owner does not touch its file."""
    path = tmp_path / f".{INDEX}.lock"
    with path.open("w") as stream:
        stream.write("job 7, process 1 on n1\n")
        stream.flush()
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield path


@pytest.mark.slow
def test_an_inactive_owner_is_not_waited_for(
    held: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index_cache, "EXPIRY_S", 0.3)
    monkeypatch.setattr(index_cache, "_POLL_S", 0.05)
    with index_cache._locked(held.parent, INDEX):
        assert held.read_text() == "job 7, process 1 on n1\n"
    assert "job 7, process 1 on n1 has not been heard of for 0 s: builds its own" in capsys.readouterr().out


class EnoughError(Exception):
    """The test has seen enough looks at a lock."""


def test_an_active_owner_is_waited_for(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def sleep(seconds: float) -> None:
        """Let most of the permitted time pass, in which the owner touches its file once."""
        nonlocal looks
        looks += 1
        if looks == 20:
            raise EnoughError
        os.utime(held, (looks, looks))

    clock = SimpleNamespace(monotonic=lambda: looks * index_cache.EXPIRY_S * 0.9, sleep=sleep)
    monkeypatch.setattr(index_cache, "time", clock)
    with pytest.raises(EnoughError), index_cache._locked(held.parent, INDEX):
        pass


def test_a_file_system_without_locks_between_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_words: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(index_cache.fcntl, "flock", refuse)
    with index_cache._locked(tmp_path, INDEX):
        pass
    assert f"{tmp_path} has no locks (Function not implemented): builds its own" in capsys.readouterr().out


def test_a_file_that_others_read_is_not_replaced(tmp_path: Path) -> None:
    save = index_cache._saving_whole(np.save, tmp_path)
    save(str(tmp_path / f"{INDEX}-a_index.npy"), np.arange(3))
    (first,) = tmp_path.iterdir()
    before = first.stat()
    save(str(first), np.arange(3))
    assert [*tmp_path.iterdir()] == [first]
    assert first.stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o666 & ~index_cache.umask()
    save(str(tmp_path / "name"), np.arange(4))  # numpy adds the suffix
    assert np.load(tmp_path / "name.npy").tolist() == [0, 1, 2, 3]
    other = tmp_path / "elsewhere"
    other.mkdir()
    save(str(other / "x.npy"), np.arange(2))
    assert np.load(other / "x.npy").tolist() == [0, 1]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    def full(_stream: object, *_words: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        index_cache._saving_whole(full, tmp_path)(str(tmp_path / "x.npy"), np.arange(3))
    assert [*tmp_path.iterdir()] == []


def test_a_file_removed_by_another_builder_is_written_again(tmp_path: Path) -> None:
    removed: list[Path] = []

    def save(stream: object, array: np.ndarray) -> None:
        np.save(stream, array)  # type: ignore[call-overload]
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()

    index_cache._saving_whole(save, tmp_path)(str(tmp_path / "x.npy"), np.arange(3))
    assert np.load(tmp_path / "x.npy").tolist() == [0, 1, 2]
    assert [*tmp_path.iterdir()] == [tmp_path / "x.npy"]


class DataSet:
    """A stub of a data set for which megatron-core builds an index."""

    def __init__(self, prefix: Path) -> None:
        self.dataset_path = str(prefix)
        self.unique_description, self.unique_description_hash = "a data set", INDEX


def test_data_that_is_prepared_again_has_another_index(tmp_path: Path) -> None:
    def name() -> str:
        one = DataSet(tmp_path / "text")
        index_cache._name_by_data(one)
        return one.unique_description_hash

    (tmp_path / "text.idx").write_bytes(b"12345678")
    (tmp_path / "text.bin").write_bytes(b"1234")
    first = name()
    os.utime(tmp_path / "text.bin", (1, 1))  # a copy on another node
    assert name() == first
    (tmp_path / "text.bin").write_bytes(b"12345")
    assert name() != first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "'.' is not a file; name CHECKOUT/pretrain_gpt.py"),
        (["/no/pretrain_gpt.py"], "'/no/pretrain_gpt.py' is not a file; name CHECKOUT/pretrain_gpt.py"),
        ([__file__, "--lr", "1"], "there is no --data-cache-path to share"),
    ],
)
def test_a_command_line_that_does_not_fit(words: list[str], message: str) -> None:
    done = subprocess.run([sys.executable, STARTER, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"upstream_index_cache.py: error: {message}\n"
