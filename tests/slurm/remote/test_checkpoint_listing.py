"""The real script lists the checkpoints of all runs of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.checkpoint_listing import listing_script, parse_listing
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

if TYPE_CHECKING:
    from pathlib import Path


def save(folder: Path, iteration: int, **files: int) -> None:
    directory = folder / f"iter_{iteration:07d}"
    directory.mkdir(parents=True)
    for name, size in files.items():
        (directory / name).write_bytes(b"x" * size)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))


@pytest.mark.slow
def test_all_runs_in_one_command(slurm, tmp_path: Path) -> None:
    root = tmp_path / "the runs' root"
    save(root / "s1" / "lr 1" / "checkpoints", 10, a=3, b=5)
    save(root / "s1" / "lr 1" / "checkpoints", 20, a=4)
    save(root / "s1" / "lr 1" / "cooldown" / "checkpoints", 15)
    save(root / "s2" / "$(x)" / "checkpoints", 5, c=1)
    (root / "s2" / "empty" / "checkpoints").mkdir(parents=True)
    (root / "s2" / "linked").mkdir()
    (root / "s2" / "linked" / "checkpoints").symlink_to(root / "s1" / "lr 1" / "checkpoints")
    save(root / "s1" / "lr 1" / ".jobs" / "x" / "checkpoints", 1)
    runs = {run.run: run for run in parse_listing(str(root), slurm.run(listing_script(str(root))))}
    assert set(runs) == {"s1/lr 1", "s1/lr 1/cooldown", "s2/$(x)", "s2/empty", "s2/linked"}
    assert runs["s1/lr 1"].directories == {"iter_0000010": {"a": 3, "b": 5}, "iter_0000020": {"a": 4}}
    assert runs["s1/lr 1"].tracker == "20"
    assert (runs["s1/lr 1/cooldown"].tracker, runs["s1/lr 1/cooldown"].directories) == (
        "15",
        {"iter_0000015": {}},
    )
    assert (runs["s2/empty"].tracker, runs["s2/empty"].directories) == (None, {})
    assert runs["s2/linked"].directories == runs["s1/lr 1"].directories
    (of_sweep,) = parse_listing(f"{root}/s2/$(x)", slurm.run(listing_script(f"{root}/s2/$(x)")))
    assert of_sweep.run == "."


def test_no_such_folder_and_no_whole_answer(slurm, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="absent"):
        parse_listing(absent, slurm.run(listing_script(absent)))
    result = slurm.run(listing_script(str(tmp_path)))
    with pytest.raises(TransportError):
        parse_listing(str(tmp_path), CommandResult(0, result.stdout[:-9], ""))


@pytest.mark.slow
def test_a_thousand_runs(slurm, tmp_path: Path) -> None:
    for point in range(1000):
        save(tmp_path / "sweep" / f"p{point}" / "checkpoints", 10, data=1)
    runs = parse_listing(str(tmp_path), slurm.run(listing_script(str(tmp_path))))
    assert len(runs) == 1000
    assert all(run.tracker == "10" and run.directories == {"iter_0000010": {"data": 1}} for run in runs)
