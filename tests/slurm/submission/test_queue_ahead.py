"""Attempts queued behind the previous stage: their start, takeover and withdrawal."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.framing import BEGIN, END
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.states.exit_codes import STEPPED_BACK_EXIT_CODE
from airflow_megatron.slurm.submission.queue_ahead import (
    QueuedBehind,
    StageBefore,
    ahead_guard,
    ahead_identity,
    decision_in,
    parse_take_up,
    parse_withdrawn_ahead,
    take_up_script,
    withdraw_ahead_script,
)
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, parse_stage_states, stage_state_script

EXIT = '{{"exit_code": {code}, "signal": {signal}, "host": "n1", "nodes": "n1", "ended": 7}}\n'
WELL = EXIT.format(code=0, signal="null")


class Before:
    """The stage before, as a node finds it: its attempts 2 and 3 were in the queue."""

    def __init__(self, place: Path) -> None:
        self.stage_dir = place / "it's" / ".jobs" / "train"
        self.own = place / "own" / "1"
        self.checkpoints = place / "it's" / "checkpoints"
        self.output = place / "it's" / "an output"
        for folder in (self.stage_dir / "2", self.own, self.checkpoints):
            folder.mkdir(parents=True)
        self.behind = QueuedBehind("train", 2, 3, ("7", "8"), "a-token")

    def ended(self, number: int, record: str = WELL) -> None:
        (self.stage_dir / str(number)).mkdir(exist_ok=True)
        (self.stage_dir / str(number) / "exit.json").write_text(record)

    def judged(self, outcome: str, attempt: int, folder: str = "") -> None:
        text = json.dumps({"outcome": outcome, "attempt": attempt, "reason": "x"}, indent=2, sort_keys=True)
        (self.stage_dir / folder / "verdict.json").write_text(text)

    def saved(self, iteration: int, files: dict[str, str], tracked: int | None = None) -> None:
        folder = self.checkpoints / f"iter_{iteration:07d}"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        tracker = self.checkpoints / "latest_checkpointed_iteration.txt"
        tracker.write_text(f"{tracked if tracked is not None else iteration}")

    def start(
        self, *, training: bool = True, shell: str = "sh", settle_s: int = 0
    ) -> subprocess.CompletedProcess[str]:
        before = StageBefore(
            self.behind,
            str(self.stage_dir),
            str(self.checkpoints / "latest_checkpointed_iteration.txt") if training else "",
            100 if training else None,
            () if training else (str(self.output),),
        )
        (self.own / "ahead").write_text(self.behind.to_record("s.p.convert.a1") + "\n")
        script = ahead_identity(str(self.own), "a-token") + ahead_guard(before, settle_s)
        return subprocess.run(
            [shell, "-c", f"set -eu\n{script}\necho runs"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SLURM_JOB_ID": "9"},
        )

    @property
    def decision(self) -> str | None:
        link = self.own / "ahead_decision"
        return decision_in(str(link.readlink())) if link.is_symlink() else None


@pytest.fixture
def before(tmp_path: Path) -> Before:
    return Before(tmp_path)


LEGACY = {"mp_rank_00/model_optim_rng.pt": "x", "mp_rank_01/model_optim_rng.pt": "x"}
DISTRIBUTED = {"__0_0.distcp": "x", ".metadata": "x", "metadata.json": "x", "common.pt": "x"}


def started(before: Before, done: subprocess.CompletedProcess[str]) -> bool:
    """Return whether a job has run its command; its output must be complete."""
    assert done.stderr == ""
    runs = "runs" in done.stdout
    assert done.returncode == (0 if runs else STEPPED_BACK_EXIT_CODE)
    assert before.decision == ("start" if runs else "back")
    return runs


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("files", "whole"),
    [
        pytest.param(LEGACY, True, id="legacy"),
        pytest.param({**LEGACY, "mp_rank_01/distrib_optim.pt": "x"}, False, id="a rank has no optimizer"),
        pytest.param({"mp_rank_01/model_optim_rng.pt": "x"}, False, id="the first rank is missing"),
        pytest.param({"mp_rank_00/model_optim_rng.pt": ""}, False, id="an empty file"),
        pytest.param(
            {f"mp_rank_0{rank}_00{stage}/model_optim_rng.pt": "x" for rank in (0, 1) for stage in (0, 1)},
            True,
            id="tensor and pipeline ranks",
        ),
        pytest.param(
            {"mp_rank_00_000/model_optim_rng.pt": "x", "mp_rank_01_001/model_optim_rng.pt": "x"},
            False,
            id="two ranks of four",
        ),
        pytest.param(DISTRIBUTED, True, id="torch_dist"),
        pytest.param({**DISTRIBUTED, "__1_0.distcp.part": "x"}, False, id="being written"),
        pytest.param({**DISTRIBUTED, ".metadata": ""}, False, id="empty metadata"),
        pytest.param(
            {name: "x" for name in DISTRIBUTED if name != "metadata.json"}, False, id="torch_dist cut short"
        ),
        pytest.param({"__0_0.distcp": "x", ".metadata": "x"}, True, id="torch_dcp"),
        pytest.param({"metadata.json": "x", ".metadata": "x"}, False, id="no shard"),
        pytest.param({"x.bin": "x"}, False, id="unknown files"),
        pytest.param({}, False, id="none"),
    ],
)
def test_training_has_finished_with_its_last_complete_checkpoint(
    before: Before, shell: str, files: dict[str, str], whole: bool
) -> None:
    before.ended(2)
    before.saved(100, files)
    assert started(before, before.start(shell=shell)) is whole


@pytest.mark.parametrize(
    ("record", "runs"),
    [
        (WELL, True),
        (EXIT.format(code=1, signal="null"), False),
        (EXIT.format(code=0, signal='"TERM"'), False),
        ("garbage", False),
        ("", False),
        (None, False),
    ],
)
def test_orderly_end(before: Before, record: str | None, runs: bool) -> None:
    before.saved(100, LEGACY)
    if record is not None:
        before.ended(2, record)
    assert started(before, before.start()) is runs


def test_emptied_record_of_the_end_is_read_from_its_copy(before: Before) -> None:
    before.saved(100, LEGACY)
    before.ended(2, "")
    (before.stage_dir / "2" / "run").mkdir()
    (before.stage_dir / "2" / "run" / "exit.8.0.json").write_text(WELL)
    assert started(before, before.start())


def test_rolled_over(before: Before) -> None:
    before.ended(2)
    before.saved(50, LEGACY)
    done = before.start()
    assert not started(before, done)
    assert "its newest checkpoint is of iteration 50 of 100" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_huge_tracker_is_not_read_whole(before: Before, shell: str) -> None:
    before.ended(2)
    before.saved(100, LEGACY)
    os.truncate(before.checkpoints / "latest_checkpointed_iteration.txt", 1 << 40)
    assert started(before, before.start(shell=shell))


def test_command_needs_its_outputs(before: Before) -> None:
    before.ended(2)
    assert not started(before, before.start(training=False))
    (before.own / "ahead_decision").unlink()
    before.output.mkdir()
    assert started(before, before.start(training=False))


@pytest.mark.slow
def test_files_may_become_visible_late(before: Before) -> None:
    before.ended(2)
    later = subprocess.Popen(["sh", "-c", 'sleep 1; mkdir "$0"', str(before.output)])
    try:
        assert started(before, before.start(training=False, settle_s=30))
    finally:
        later.wait()


def test_attempts_that_were_queued_with_it_decide_and_no_other(before: Before) -> None:
    before.saved(100, LEGACY)
    before.ended(2, EXIT.format(code=0, signal='"TERM"'))
    before.ended(3)
    assert started(before, before.start())
    (before.own / "ahead_decision").unlink()
    before.ended(4)
    done = before.start()
    assert not started(before, done)
    assert "its attempt 4 was submitted after this job" in done.stdout


@pytest.mark.parametrize(
    ("outcome", "attempt", "folder", "runs"),
    [
        ("finished", 2, "", True),
        ("finished", 2, "2", True),
        ("failed", 1, "", True),
        ("failed", 2, "", False),
        ("cancelled", 2, "", False),
        ("failed", 2, "2", False),
        ("retryable", 2, "2", False),
    ],
)
def test_verdicts_count(before: Before, outcome: str, attempt: int, folder: str, runs: bool) -> None:
    before.ended(2)
    before.saved(100, LEGACY)
    before.judged(outcome, attempt, folder)
    assert started(before, before.start()) is runs


def test_verdict_of_airflows_is_enough(before: Before) -> None:
    """A training whose test evaluation fails has finished, with a warning."""
    before.ended(2, EXIT.format(code=1, signal="null"))
    before.judged("finished", 2)
    assert started(before, before.start())


def test_withdrawn_attempt_has_not_finished(before: Before) -> None:
    before.ended(2)
    before.saved(100, LEGACY)
    (before.stage_dir / "2" / "withdrawn").touch()
    assert not started(before, before.start())


@pytest.mark.parametrize(("queued_after_s", "runs"), [(60, True), (-60, False)])
def test_a_withdrawal_by_an_earlier_run_has_no_effect(
    before: Before, queued_after_s: float, runs: bool
) -> None:
    before.ended(2)
    before.saved(100, LEGACY)
    mark = before.stage_dir / "2" / "withdrawn"
    mark.touch()
    created = before.own / "created"
    created.write_text("1 token\n")
    time = mark.stat().st_mtime + queued_after_s
    os.utime(created, (time, time))
    assert started(before, before.start()) is runs


@pytest.mark.parametrize(("word", "runs"), [("due", True), ("start", True), ("back", False)])
def test_the_first_decision_counts(before: Before, word: str, runs: bool) -> None:
    (before.own / "ahead_decision").symlink_to(f"decided.{word}")
    if not runs:
        before.ended(2)
        before.saved(100, LEGACY)
    done = before.start()
    assert ("runs" in done.stdout) is runs
    assert before.decision == word


def test_job_whose_number_another_attempt_has_does_not_touch_it(
    before: Before, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before.ended(2)
    before.saved(100, LEGACY)
    monkeypatch.setattr(before, "behind", replace(before.behind, token="another"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "sleep").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    done = before.start()
    assert done.returncode == STEPPED_BACK_EXIT_CODE
    assert before.decision is None


def test_record_survives_a_round_trip() -> None:
    behind = QueuedBehind("a.b", 1, 3, ("7", "8_2"), "x-1")
    assert QueuedBehind.from_record(behind.to_record("s.p.c.a1")) == behind
    assert [QueuedBehind.from_record(text) for text in (None, "", "a b", "a b c d e f")] == [None] * 4


def test_dependency_on_a_command_needs_its_success() -> None:
    behind = QueuedBehind("a", 1, 1, ("7",), "x")
    assert StageBefore(behind, "/r/a", outputs=("/r/o",)).dependency == "afterok:7"
    assert StageBefore(behind, "/r/a", "/r/tracker", 5).dependency == "afterany:7"
    assert StageBefore(replace(behind, job_ids=("7", "8")), "/r/a", "/r/t", 5).dependency == "afterany:7:8"


class Queued:
    """An attempt of the stage ``convert`` that was submitted behind job 7."""

    def __init__(self, slurm: Any, request_for: Any, place: Path) -> None:
        self.slurm = slurm
        self.stage_dir = str(place / "run" / ".jobs" / "convert")
        self.name = "sweep.point.convert.a1"
        self.behind = QueuedBehind("train", 1, 1, ("7",), "a-token")
        self.request = request_for(
            1,
            attempt=Attempt(self.name, self.stage_dir, 1),
            dependencies=("afterok:7",),
            ahead=self.behind.to_record(self.name),
        )
        self.outcome = slurm.submit(self.request)

    @property
    def directory(self) -> Path:
        return Path(self.stage_dir) / "1"

    def decided(self, word: str) -> None:
        (self.directory / "ahead_decision").symlink_to(f"decided.{word}")

    def state(self) -> list[AttemptState]:
        answer = self.slurm.run(stage_state_script([self.stage_dir]))
        return list(parse_stage_states([self.stage_dir], answer)[self.stage_dir].attempts)

    def taken(self) -> bool:
        return parse_take_up(self.slurm.run(take_up_script(str(self.directory))))

    def withdrawn(self) -> tuple[list[int], list[int]]:
        dirs = [f"{self.stage_dir}_none", self.stage_dir]
        outcome = parse_withdrawn_ahead(dirs, self.slurm.run(withdraw_ahead_script(dirs)))
        assert {path for path, _ in (*outcome.withdrawn, *outcome.started)} <= {self.stage_dir}
        return [number for _, number in outcome.withdrawn], [number for _, number in outcome.started]


@pytest.fixture
def queued(slurm, request_for, tmp_path: Path) -> Queued:
    return Queued(slurm, request_for, tmp_path)


@pytest.mark.slow
def test_submission_is_recorded_as_one_ahead(queued: Queued) -> None:
    assert "--dependency=singleton,afterok:7" in queued.slurm.accepted("1001", "argv").splitlines()
    (attempt,) = queued.state()
    assert attempt.job_id == "1001"
    assert QueuedBehind.from_record(attempt.ahead) == queued.behind
    assert attempt.decision is None
    queued.decided("start")
    assert decision_in(queued.state()[0].decision) == "start"


@pytest.mark.slow
def test_its_task_takes_it_over_once(queued: Queued) -> None:
    assert queued.taken()
    assert queued.taken()
    assert decision_in(queued.state()[0].decision) == "due"
    assert queued.slurm.jobs == ["1001"]
    assert queued.withdrawn() == ([], []), "its own task waits for it now"


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["back", "cancelled", "never", "goes on"])
def test_an_attempt_that_cannot_start_is_freed(queued: Queued, fate: str) -> None:
    job = queued.slurm.root / "jobs" / "1001"
    if fate == "back":
        queued.decided("back")
    elif fate == "cancelled":
        job.unlink()
    elif fate == "never":
        job.write_text(f"1001|PENDING|1|DependencyNeverSatisfied|{queued.name}\n")
    else:
        (queued.slurm.root / "jobs" / "7").write_text("7|RUNNING|1|None|sweep.point.train.a1\n")
    assert not queued.taken()
    assert queued.state() == []
    assert "1001" not in queued.slurm.jobs
    again = queued.slurm.submit(replace(queued.request, ahead="", dependencies=(), claim_token="again"))
    assert again.status == "submitted"
    assert queued.state()[0].ahead is None


@pytest.mark.slow
def test_a_started_attempt_is_taken_over_without_a_queue_record(queued: Queued) -> None:
    queued.decided("start")
    (queued.slurm.root / "jobs" / "1001").unlink()
    assert queued.taken()


@pytest.mark.slow
def test_without_an_answer_of_squeue_nothing_is_decided(queued: Queued) -> None:
    queued.slurm.behave("squeue", 'echo "Socket timed out" >&2; exit 1')
    with pytest.raises(TransportError, match="Socket timed out"):
        queued.taken()
    assert queued.state()[0].decision is None


@pytest.mark.slow
def test_withdrawing(queued: Queued) -> None:
    (queued.slurm.root / "jobs" / "7").write_text("7|PENDING|1|(null)|another\n")
    assert queued.withdrawn() == ([1], [])
    assert queued.slurm.jobs == ["7"]
    assert queued.state() == []
    assert queued.withdrawn() == ([], [])


@pytest.mark.slow
def test_a_pipe_in_place_of_a_record_does_not_prevent_the_withdrawal(queued: Queued) -> None:
    record = queued.directory / "ahead"
    record.unlink()
    os.mkfifo(record)
    assert queued.withdrawn() == ([1], [])


@pytest.mark.slow
def test_withdrawing_again_after_an_interruption(queued: Queued) -> None:
    queued.slurm.behave("squeue", 'echo "Socket timed out" >&2; exit 1')
    with pytest.raises(TransportError, match="Socket timed out"):
        queued.withdrawn()
    queued.slurm.behave_normally("squeue")
    assert decision_in(queued.state()[0].decision) == "back", "its job cannot start any more"
    assert queued.withdrawn() == ([1], [])


@pytest.mark.slow
def test_a_started_attempt_is_not_withdrawn(queued: Queued) -> None:
    queued.decided("start")
    assert queued.withdrawn() == ([], [1])
    assert queued.slurm.jobs == ["1001"]


@pytest.mark.slow
def test_full_disk_decides_nothing(queued: Queued) -> None:
    if os.geteuid() == 0:
        shutil.rmtree(queued.directory / "claim.1")
        (queued.directory / "ahead_decision").mkdir()  # links can be neither created nor read
    else:
        queued.directory.chmod(0o555)
    with pytest.raises(TransportError, match="nothing can be written"):
        queued.taken()
    queued.directory.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(4))
def test_concurrent_start_takeover_and_withdrawal(queued: Queued, tmp_path: Path, round_: int) -> None:
    """The first of the three wins, and the others accept it: no running job is withdrawn, and no withdrawn job runs."""
    output = tmp_path / "output"
    (tmp_path / "run" / ".jobs" / "train" / "1").mkdir(parents=True)
    (tmp_path / "run" / ".jobs" / "train" / "1" / "exit.json").write_text(WELL)
    output.touch()
    before = StageBefore(queued.behind, str(tmp_path / "run" / ".jobs" / "train"), outputs=(str(output),))
    own = str(queued.directory)
    job = f"set -eu\n{ahead_identity(own, 'a-token')}{ahead_guard(before, 0)}\necho runs >>{shlex.quote(str(output))}\n"
    scripts = [job, take_up_script(own), withdraw_ahead_script([queued.stage_dir])]
    started = [queued.slurm.start(script) for script in scripts[round_ % 3 :] + scripts[: round_ % 3]]
    for process in started:
        process.communicate(timeout=60)
    again = parse_take_up(queued.slurm.run(take_up_script(own)))
    left = queued.state()
    runs = output.read_text().splitlines()
    assert len(runs) <= 1
    if left:
        assert again
        assert decision_in(left[0].decision) in ("start", "due")
    else:
        assert runs == []
        assert "1001" not in queued.slurm.jobs


@pytest.mark.parametrize("line", ["withdrawn x 1", "started 7 1", "withdrawn 0 one", "withdrawn"])
def test_a_damaged_answer_of_a_withdrawal_is_an_error(line: str) -> None:
    answer = CommandResult(0, f"{BEGIN}\n{line}\n{END}\n", "")
    with pytest.raises(TransportError):
        parse_withdrawn_ahead(["/r/s"], answer)
