"""Trainings that share an index cache: unmodified upstream and this project's trainer."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from trainer_harness import (
    LOOP,
    MODEL,
    REPOSITORY,
    SCHEDULE,
    SCRIPTS,
    TIMEOUT_S,
    UPSTREAM_RELEASE,
    Data,
    Trainer,
)

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.spec.model.cluster_profile import load_cluster

if TYPE_CHECKING:
    from pathlib import Path

WATCHED = REPOSITORY / "tests" / "trainer" / "data" / "watched_saves.py"


class Training:
    """A running training whose log is a file."""

    def __init__(self, trainer: Trainer, log: Path, words: list[object]) -> None:
        port = free_port()
        first, *others = words
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        self.log, self._stream = log, log.open("w")
        self.process = subprocess.Popen(
            [str(trainer.python), str(first), *map(str, others)],
            stdout=self._stream,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", **rank, "MASTER_PORT": str(port)},
        )

    def wait_for_text(self, text: str) -> str:
        """Wait until the log has a text; return the log."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in (log_text := self.log.read_text()):
            assert self.process.poll() is None, log_text[-4000:]
            assert time.monotonic() < deadline, log_text[-4000:]
            time.sleep(0.1)
        return log_text

    def end(self) -> tuple[int, str]:
        """Wait for its end; return exit status and log."""
        try:
            status = self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            self._stream.close()
        return status, self.log.read_text()

    def finished(self) -> str:
        """Wait for its end; return the log of a training that ended well."""
        status, log_text = self.end()
        assert status == 0, log_text[-4000:]
        assert "iteration       12/      12" in log_text
        return log_text


def test_a_cache_that_only_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.syspath_prepend(SCRIPTS)
    index_cache = importlib.import_module("megatron_core_trainer.data.index_cache")
    monkeypatch.setattr(index_cache.os, "open", refuse)
    with index_cache._locked(tmp_path, "index"):
        assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["megatron_lm", "megatron_core"])
def words(request: pytest.FixtureRequest, data: Data, tmp_path: Path) -> list[object]:
    """The words of a training whose indices are in ``tmp_path/cache``, as a job's command has them."""
    arguments = [*MODEL, *SCHEDULE, *LOOP, *data.args(), "--data-cache-path", tmp_path / "cache"]
    if request.param == "megatron_core":
        return [SCRIPTS / "pretrain_gpt.py", *arguments]
    machine = to_argv(load_cluster("local").trainer("megatron_lm").arguments, UPSTREAM_RELEASE)
    script = request.getfixturevalue("upstream") / "pretrain_gpt.py"
    return [SCRIPTS / "upstream_on_cpu.py", SCRIPTS / "upstream_index_cache.py", script, *arguments, *machine]


def index_files(cache: Path) -> list[Path]:
    return sorted(file for file in cache.glob("*.npy") if not file.name.startswith("."))


def test_a_killed_builder_leaves_no_index_and_of_two_trainings_one_builds_it(
    trainer: Trainer, words: list[object], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    status, _ = Training(trainer, tmp_path / "killed.log", [WATCHED, "die", *words]).end()
    assert status == -signal.SIGKILL
    assert index_files(cache) == []
    (half,) = (file for file in cache.iterdir() if ".npy." in file.name)
    with pytest.raises((ValueError, EOFError)):
        np.load(half)

    (lock,) = cache.glob(".*.lock")
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        two = [Training(trainer, tmp_path / f"{number}.log", [WATCHED, "say", *words]) for number in "12"]
        for training in two:
            assert "> waits for process " in training.wait_for_text(", which builds the index ")
        assert index_files(cache) == []
    logs = [training.finished() for training in two]
    assert len(index_files(cache)) == 9  # documents, samples and order, of three data sets
    assert "".join(logs).count("saved an index file") == 9
    assert all(len(np.load(file)) for file in index_files(cache))
    assert not [file for file in cache.iterdir() if ".npy." in file.name]
    first, second = (re.findall(r"lm loss: (\S+)", log) for log in logs)
    assert first == second
    assert len(first) == 12
