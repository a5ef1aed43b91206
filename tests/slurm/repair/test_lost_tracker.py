"""Restoring a lost tracker file, in real shells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.repair.lost_tracker import LostTrackerError, parse_tracker, tracker_script

if TYPE_CHECKING:
    from pathlib import Path

NAME = "latest_checkpointed_iteration.txt"


@pytest.mark.parametrize("before", [None, "", "garbage", "120"])
def test_it_is_written(slurm, tmp_path: Path, before: str | None) -> None:
    tracker = tmp_path / "it's" / NAME
    tracker.parent.mkdir()
    if before is not None:
        tracker.write_text(before)
    for _ in range(2):
        parse_tracker(slurm.run(tracker_script(str(tracker.parent), 120)))
        assert tracker.read_text() == "120"
    assert [path.name for path in tracker.parent.iterdir()] == [NAME]


def test_another_job_saves_meanwhile(slurm, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("140\n")
    with pytest.raises(LostTrackerError, match="it holds 140 by now"):
        parse_tracker(slurm.run(tracker_script(str(tmp_path), 120)))
    assert (tmp_path / NAME).read_text() == "140\n"


def test_a_tracker_of_any_size_is_read_in_bounded_time(slurm, tmp_path: Path) -> None:
    with (tmp_path / NAME).open("wb") as tracker:
        tracker.truncate(1 << 40)
    parse_tracker(slurm.run(tracker_script(str(tmp_path), 120)))
    assert (tmp_path / NAME).read_text() == "120"


def test_it_cannot_be_written(slurm, tmp_path: Path) -> None:
    with pytest.raises(LostTrackerError, match="cannot be written"):
        parse_tracker(slurm.run(tracker_script(str(tmp_path / "absent"), 120)))


def test_an_answer_that_is_cut_off() -> None:
    with pytest.raises(TransportError):
        parse_tracker(CommandResult(0, "", ""))
