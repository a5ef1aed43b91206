"""Records of any size do not delay the reading of other jobs in the same poll."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.remote.checkpoint_listing import listing_script, parse_listing
from airflow_megatron.slurm.remote.finished_stages import finished_stages_script
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EXIT = '{"exit_code": 3, "ended": 5, "job_id": "7"}\n'
VERDICT = '{"outcome": "failed", "reason": "because", "attempt": 1}\n'
SIZE = 12 << 20
"""Bytes; the shell takes 3 s or more of processor time for them. A job may write a thousand times as much."""


@contextlib.contextmanager
def little_time() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def large(path: Path) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(SIZE)


def linked(path: Path) -> None:
    path.unlink(missing_ok=True)
    large(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


SHAPES = {"large": large, "link to a large file": linked, "pipe": pipe, "folder": folder}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@each_shape
def test_the_copy_of_a_damaged_record(slurm, tmp_path: Path, shape: Callable[[Path], None]) -> None:
    watches = []
    for name in ("evil", "good"):
        attempt = tmp_path / name
        (attempt / "run").mkdir(parents=True)
        (attempt / "exit.json").write_text("damaged")
        (attempt / "run" / "exit.7.0.json").write_text(EXIT)
        watches.append(Watch(key=name, attempt_dir=str(attempt)))
    shape(tmp_path / "evil" / "run" / "exit.7.0.json")
    with little_time():
        found = parse_poll(watches, slurm.run(poll_script(watches)))
    assert found["evil"].exit is None
    assert found["good"].exit is not None
    assert found["good"].exit.exit_code == 3


def test_the_newest_small_copy_counts(slurm, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "exit.json").write_text("damaged")
    for number in range(3):
        copy = tmp_path / "run" / f"exit.7.{number}.json"
        copy.write_text(EXIT.replace("3", str(number)))
        os.utime(copy, (number, number))
    large(tmp_path / "run" / "exit.7.3.json")
    watch = Watch(key="job", attempt_dir=str(tmp_path))
    found = parse_poll([watch], slurm.run(poll_script([watch])))["job"]
    assert found.exit is not None
    assert found.exit.exit_code == 2


@each_shape
def test_verdicts_of_a_sweep(slurm, tmp_path: Path, shape: Callable[[Path], None]) -> None:
    stages = [tmp_path / name for name in ("evil", "good")]
    for stage in stages:
        (stage / "1").mkdir(parents=True)
        (stage / "verdict.json").write_text(VERDICT)
    shape(stages[0] / "verdict.json")
    names = [str(stage) for stage in stages]
    with little_time():
        answer = slurm.run(finished_stages_script([[name] for name in names]))
    evil, good = (parse_stage_states(names, answer)[name] for name in names)
    assert evil.verdict is None
    assert good.verdict is not None
    assert good.latest_attempt == 1


@each_shape
@pytest.mark.parametrize(
    "file",
    ["verdict.json", "1/exit.json", "1/jobid", "1/run/job_id", "1/verdict.json", "1/job.json", "tracker"],
)
def test_records_of_a_stage(slurm, tmp_path: Path, file: str, shape: Callable[[Path], None]) -> None:
    stages = [tmp_path / name / ".jobs" / "train" for name in ("evil", "good")]
    for stage in stages:
        (stage / "1" / "run").mkdir(parents=True)
        (stage / "verdict.json").write_text(VERDICT)
        (stage / "1" / "exit.json").write_text(EXIT)
        (stage.parents[1] / "checkpoints").mkdir()
        (stage.parents[1] / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("5")
    tracker = tmp_path / "evil" / "checkpoints" / "latest_checkpointed_iteration.txt"
    shape(tracker if file == "tracker" else stages[0] / file)
    names = [str(stage) for stage in stages]
    with little_time():
        found = parse_stage_states(names, slurm.run(stage_state_script(names)))
    evil, good = (found[name] for name in names)
    assert good.verdict is not None
    assert good.latest is not None
    assert good.latest.exit is not None
    assert (evil.verdict is None) == (file == "verdict.json")
    assert (evil.latest is None or evil.latest.exit is None) == (file == "1/exit.json")


@each_shape
def test_trackers_in_a_list_of_checkpoints(slurm, tmp_path: Path, shape: Callable[[Path], None]) -> None:
    for name in ("evil", "good"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("5")
    shape(tmp_path / "evil" / "checkpoints" / "latest_checkpointed_iteration.txt")
    with little_time():
        runs = parse_listing(str(tmp_path), slurm.run(listing_script(str(tmp_path))))
    assert [(run.run, run.tracker) for run in runs] == [("evil", None), ("good", "5")]
