"""Quarantine of damaged checkpoints: the decision, and the script in real shells."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.quoting import QuotingError
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.repair.quarantine import (
    NoQuarantine,
    Quarantine,
    QuarantineError,
    QuarantineResult,
    decide,
    parse_quarantine,
    quarantine_script,
)

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = {
    "dash": ["dash", "-s"],
    "bash": ["bash", "-s"],
    "bash as sh": ["bash", "--posix", "-s"],
    "careful bash": ["bash", "-e", "-u", "-C", "-f", "-s"],
}
STEP = Quarantine(20, 10, 20, "damaged")


def test_decision() -> None:
    folder = {
        "iter_0000010": "complete",
        "iter_0000020": "incomplete",
        "iter_0000030": "incomplete",
        "x": "complete",
    }
    step = decide(folder, tracked=20)
    assert isinstance(step, Quarantine)
    assert (step.iteration, step.back_to, step.tracked) == (20, 10, 20)
    assert isinstance(
        decide(folder, tracked=10), NoQuarantine
    )  # 30 is an interrupted save, which is never loaded
    assert isinstance(decide({**folder, "iter_0000020": "unverifiable"}, tracked=20), NoQuarantine)
    assert isinstance(decide(folder, tracked=None), NoQuarantine)


def test_the_log_takes_precedence_over_the_listing() -> None:
    folder = {"iter_0000010": "complete", "iter_0000020": "complete"}
    step = decide(folder, tracked=20, damaged=20)
    assert isinstance(step, Quarantine)
    assert step.back_to == 10
    assert isinstance(decide(folder, tracked=20, damaged=10), NoQuarantine)
    assert isinstance(decide(folder, tracked=20), NoQuarantine)


def test_progress_is_kept_and_rollbacks_end() -> None:
    alone = {"iter_0000010": "incomplete"}
    stop = decide(alone, tracked=10)
    assert isinstance(stop, NoQuarantine)
    assert stop.hopeless
    fresh = decide(alone, tracked=10, allow_fresh_start=True)
    assert isinstance(fresh, Quarantine)
    assert fresh.back_to is None
    folder = {"iter_0000010": "complete", "iter_0000020": "incomplete"}
    assert isinstance(decide(folder, tracked=20, quarantined=1), Quarantine)
    used_up = decide(folder, tracked=20, quarantined=2)
    assert isinstance(used_up, NoQuarantine)
    assert used_up.hopeless
    gone = decide({"iter_0000010": "complete"}, tracked=20, quarantined=2)
    assert isinstance(gone, Quarantine)  # nothing to rename, only the tracker changes


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(0, 9), st.sampled_from(["complete", "incomplete", "unverifiable"])),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.integers(0, 3),
)
def test_the_next_attempt_never_uses_an_incomplete_checkpoint(
    verdicts, tracked, damaged, quarantined
) -> None:
    named = {f"iter_{number:07d}": verdict for number, verdict in verdicts.items()}
    step = decide(named, tracked=tracked, damaged=damaged, quarantined=quarantined)
    if isinstance(step, Quarantine):
        assert step.iteration == tracked
        assert step.back_to is not None
        assert verdicts[step.back_to] == "complete"
        assert step.back_to < step.iteration


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoints folder whose name needs quoting."""
    path = tmp_path / "it's $(touch hurt) `x` ck"
    for name in ("iter_0000010", "iter_0000020", "iter_0000030"):
        (path / name).mkdir(parents=True)
        (path / name / "metadata.json").write_text("{}")
    (path / "latest_checkpointed_iteration.txt").write_text("20\n")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tracker(folder: Path) -> str:
    return (folder / "latest_checkpointed_iteration.txt").read_text().strip()


def run(folder: Path, step: Quarantine = STEP, *, limit: int = 2, shell: str = "dash") -> QuarantineResult:
    script = quarantine_script(str(folder), step, limit=limit)
    done = subprocess.run(
        SHELLS[shell], input=script, capture_output=True, text=True, cwd=folder.parent, check=False
    )
    assert done.stderr == ""
    return parse_quarantine(CommandResult(done.returncode, done.stdout, done.stderr))


@pytest.mark.parametrize("shell", SHELLS)
def test_renamed_and_moved_back(folder: Path, shell: str) -> None:
    assert run(folder, shell=shell) == QuarantineResult("quarantined", "failed_iter_0000020")
    wanted = ["failed_iter_0000020", "iter_0000010", "iter_0000030", "latest_checkpointed_iteration.txt"]
    assert names(folder) == wanted
    assert tracker(folder) == "10"
    assert run(folder, shell=shell).status == "already"
    assert names(folder) == wanted
    assert names(folder.parent) == [folder.name]


@pytest.mark.parametrize("shell", SHELLS)
def test_deepspeeds_checkpoints(tmp_path: Path, shell: str) -> None:
    for iteration in (10, 20):
        (tmp_path / f"global_step{iteration}").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    (tmp_path / "latest").write_text("global_step20")
    assert run(tmp_path, shell=shell) == QuarantineResult("quarantined", "failed_global_step20")
    assert (tracker(tmp_path), (tmp_path / "latest").read_text()) == ("10", "global_step10")
    assert run(tmp_path, shell=shell).status == "already"
    assert run(tmp_path, Quarantine(10, None, 10, "damaged"), limit=2, shell=shell).status == "quarantined"
    assert names(tmp_path) == ["failed_global_step10", "failed_global_step20"]  # DeepSpeed finds none either


def test_through_the_remote_shell(folder: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", SlurmCommands().remote_shell()],
        input=quarantine_script(f"{folder}/", STEP),
        capture_output=True,
        text=True,
        check=True,
    )
    assert parse_quarantine(CommandResult(0, done.stdout, done.stderr)).done
    assert tracker(folder) == "10"


def test_killed_between_its_two_steps(folder: Path) -> None:
    """The tracker moves first, so that state loads the good checkpoint; the script then finishes its work."""
    (folder / "latest_checkpointed_iteration.txt").write_text("10")
    assert run(folder).status == "quarantined"
    assert tracker(folder) == "10"
    assert "failed_iter_0000020" in names(folder)


def test_missing_directory(folder: Path) -> None:
    shutil.rmtree(folder / "iter_0000020")
    assert run(folder).status == "moved"
    assert tracker(folder) == "10"


def test_never_more_than_the_limit(folder: Path) -> None:
    before = names(folder)
    assert run(folder, limit=0) == QuarantineResult("exhausted", "0")
    assert names(folder) == before
    assert tracker(folder) == "20"
    for count in range(2):
        assert run(folder).done
        (
            folder / "iter_0000020"
        ).mkdir()  # the run reaches the iteration again, and the checkpoint is damaged again
        (folder / "latest_checkpointed_iteration.txt").write_text("20")
        kept = [name for name in names(folder) if name.startswith("failed_")]
        assert len(kept) == count + 1
    assert run(folder) == QuarantineResult("exhausted", "2")
    assert "failed_iter_0000020.2" in names(folder)
    assert tracker(folder) == "20"


def test_a_folder_that_changed_is_not_touched(folder: Path) -> None:
    (folder / "latest_checkpointed_iteration.txt").write_text("30")
    assert run(folder).status == "refused"
    shutil.rmtree(folder / "iter_0000010")
    (folder / "latest_checkpointed_iteration.txt").write_text("20")
    assert run(folder).status == "refused"
    assert tracker(folder) == "20"
    assert "iter_0000020" in names(folder)


def test_a_link_is_renamed_but_not_its_target(folder: Path) -> None:
    target = folder.parent / "trunk"
    (folder / "iter_0000020").rename(target)
    (folder / "iter_0000020").symlink_to(target)
    assert run(folder).status == "quarantined"
    assert (folder / "failed_iter_0000020").is_symlink()
    assert (target / "metadata.json").exists()


def test_fresh_start(folder: Path) -> None:
    assert run(folder, Quarantine(20, None, 20, "damaged")).status == "quarantined"
    assert not (folder / "latest_checkpointed_iteration.txt").exists()
    assert run(folder, Quarantine(20, None, 20, "damaged")).status == "already"


def test_iteration_zero_and_eight_digits(folder: Path) -> None:
    for name in ("iter_0000000", "iter_12345678"):
        (folder / name).mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("12345678")
    assert run(folder, Quarantine(12345678, 0, 12345678, "damaged")).detail == "failed_iter_12345678"
    assert tracker(folder) == "0"


def test_what_cannot_be_written(folder: Path) -> None:
    (folder / "latest_checkpointed_iteration.txt").unlink()
    (folder / "latest_checkpointed_iteration.txt").mkdir()
    with pytest.raises(QuarantineError, match="is a directory"):
        run(folder, Quarantine(20, 10, None, "damaged"))
    assert "iter_0000020" in names(folder)


def test_answers_and_arguments() -> None:
    with pytest.raises(TransportError):
        parse_quarantine(CommandResult(255, "", "connection closed"))
    with pytest.raises(QuotingError):
        quarantine_script("relative/ck", STEP)
    with pytest.raises(QuotingError):
        quarantine_script("/a\nb", STEP)
    with pytest.raises(ValueError, match="negative"):
        quarantine_script("/ck", Quarantine(-1, 0, 1, "x"))
