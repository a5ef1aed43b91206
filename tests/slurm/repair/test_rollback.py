"""Rollback to an earlier checkpoint: the choice, and the script in real shells."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.repair.fresh_start import FreshStartError, fresh_start_script, parse_fresh_start
from airflow_megatron.slurm.repair.rollback import (
    Rollback,
    RollbackError,
    choose_rollback,
    parse_rollback,
    rollback_script,
)
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.verdict import Verdict
from airflow_megatron.spec.documents.checkpoint_directories import iteration_of

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = {
    "dash": ["dash", "-s"],
    "bash": ["bash", "-s"],
    "careful bash": ["bash", "-e", "-u", "-C", "-f", "-s"],
}


def bad(before: int | None = None) -> Verdict:
    return Verdict(Outcome.FAILED, "NaN", rollback=True, before_iteration=before)


OVER = Verdict(Outcome.ROLLED_OVER, "over")


@pytest.mark.parametrize(
    ("verdicts", "began_at", "expected"),
    [
        ([bad()], 0, 30),
        ([bad(25)], 0, 20),
        ([bad(20)], 0, 10),
        ([bad(25), bad(25)], 20, 10),  # the same failure again: go further back
        ([bad(), bad()], 30, 20),
        ([bad(15), bad(25)], 10, 20),  # later than last time, so the checkpoint saved since then is valid
        ([bad(25), OVER, bad(25)], 20, 20),
    ],
)
def test_choice(verdicts: list[Verdict], began_at: int, expected: int) -> None:
    step = choose_rollback([10, 20, 30], verdicts, tracked=30, began_at=began_at)
    assert step == Rollback(expected, 30)


def test_nothing_to_go_back_to() -> None:
    with pytest.raises(RollbackError, match="no complete checkpoint before iteration 10 to go back to"):
        choose_rollback([10, 20], [bad(10)], tracked=20, began_at=0)
    with pytest.raises(RollbackError, match="besides that of iteration 10, which led here"):
        choose_rollback([10], [bad(), bad()], tracked=10, began_at=10)
    with pytest.raises(RollbackError):
        choose_rollback([10], [bad()], tracked=None, began_at=0)
    # beyond the tracker: training would not load a checkpoint whose save was interrupted after the last file
    assert choose_rollback([10, 20], [bad()], tracked=10, began_at=0) == Rollback(10, 10)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = tmp_path / "it's a run"
    for iteration in (10, 20, 30, 12345678):
        (run / "checkpoints" / f"iter_{iteration:07d}").mkdir(parents=True)
        (run / "converted_hf" / f"iter_{iteration}").mkdir(parents=True)
        (run / "eval_results" / f"iter_{iteration}").mkdir(parents=True)
        (run / "converted_checkpoints").mkdir(exist_ok=True)
        (run / "converted_checkpoints" / f"iter_{iteration}.done").touch()
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("30")
    return run


def answer(script: str, shell: str = "dash") -> CommandResult:
    done = subprocess.run(SHELLS[shell], input=script, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("shell", SHELLS)
def test_newer_checkpoints_and_their_outputs_are_renamed(run_dir: Path, shell: str) -> None:
    script = rollback_script(str(run_dir), Rollback(10, 30))
    aside = parse_rollback(answer(script, shell))
    assert len(aside) == 12
    assert (run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "10"
    assert names(run_dir / "checkpoints") == {
        "latest_checkpointed_iteration.txt",
        "iter_0000010",
        "rolled_back_iter_0000020",
        "rolled_back_iter_0000030",
        "rolled_back_iter_12345678",
    }
    for folder in ("converted_hf", "eval_results"):
        assert "iter_10" in names(run_dir / folder)
        assert "rolled_back_iter_20" in names(run_dir / folder)
        assert "iter_20" not in names(run_dir / folder)
    assert "rolled_back_iter_20.done" in names(run_dir / "converted_checkpoints")
    assert parse_rollback(answer(script, shell)) == []  # repeated after a lost answer


def test_a_second_rollback_keeps_the_files_of_the_first(run_dir: Path) -> None:
    parse_rollback(answer(rollback_script(str(run_dir), Rollback(20, 30))))
    (run_dir / "checkpoints" / "iter_0000030").mkdir()
    (run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("30")
    parse_rollback(answer(rollback_script(str(run_dir), Rollback(20, 30))))
    assert {"rolled_back_iter_0000030", "rolled_back_iter_0000030.2"} <= names(run_dir / "checkpoints")


def test_renamed_checkpoints_do_not_count() -> None:
    for name in ("rolled_back_iter_0000020", "rolled_back_iter_0000020.2", "failed_iter_0000020"):
        assert iteration_of(name) is None


def test_a_folder_that_changed_meanwhile_is_not_touched(run_dir: Path) -> None:
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    tracker.write_text("40")
    with pytest.raises(RollbackError, match="holds 40, not 30 any more"):
        parse_rollback(answer(rollback_script(str(run_dir), Rollback(10, 30))))
    with pytest.raises(RollbackError, match="iteration 15 is gone"):
        parse_rollback(answer(rollback_script(str(run_dir), Rollback(15, 40))))
    assert "iter_0000030" in names(run_dir / "checkpoints")


@pytest.mark.parametrize("shell", SHELLS)
def test_fresh_start(run_dir: Path, shell: str) -> None:
    folder = run_dir / "checkpoints"
    script = fresh_start_script(str(folder), 3)
    assert parse_fresh_start(answer(script, shell)) == f"{folder}.before_3"
    assert not folder.exists()
    assert parse_fresh_start(answer(script, shell)) is None
    folder.mkdir()  # of the attempt that was started
    assert parse_fresh_start(answer(script, shell)) is None
    assert folder.exists()
    assert (run_dir / "checkpoints.before_3" / "iter_0000010").is_dir()


def test_cut_answers() -> None:
    for parse in (parse_rollback, parse_fresh_start):
        with pytest.raises(TransportError):
            parse(CommandResult(0, "aside x", ""))
    answer_text = answer(fresh_start_script("/proc/self", 1))
    with pytest.raises(FreshStartError):
        parse_fresh_start(answer_text)


@pytest.mark.parametrize("shell", SHELLS)
def test_deepspeeds_checkpoints(tmp_path: Path, shell: str) -> None:
    for iteration in (5, 10, 20):
        (tmp_path / "checkpoints" / f"global_step{iteration}").mkdir(parents=True)
    for tracker, text in (("latest_checkpointed_iteration.txt", "20"), ("latest", "global_step20")):
        (tmp_path / "checkpoints" / tracker).write_text(text)
    aside = parse_rollback(answer(rollback_script(str(tmp_path), Rollback(5, 20)), shell))
    assert sorted(aside) == ["rolled_back_global_step10", "rolled_back_global_step20"]
    assert (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "5"
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step5"
