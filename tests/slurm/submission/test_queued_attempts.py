"""Attempts queued behind one another: their start and withdrawal."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_megatron.slurm.remote.framing import BEGIN, END
from airflow_megatron.slurm.remote.records import ExitRecord, read_object
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.submission.attempt_chain import (
    chain_prologue,
    current_attempt,
    parse_withdrawn,
    runs_after,
    withdraw_chain_script,
)
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import (
    AttemptState,
    StageRecord,
    parse_stage_states,
    stage_state_script,
)

EXIT = '{{"exit_code": {code}, "signal": {signal}, "host": "n1", "nodes": "n1", "ended": 7}}\n'


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("tracker", "record", "status"),
    [
        pytest.param(None, None, None, id="the previous attempt was killed"),
        pytest.param("50", EXIT.format(code=0, signal="null"), None, id="rolled over"),
        pytest.param("50", EXIT.format(code=1, signal='"TERM"'), None, id="told to stop by a signal"),
        pytest.param("50", EXIT.format(code=143, signal="null"), None, id="stopped by SIGTERM"),
        pytest.param("50", EXIT.format(code=16, signal="null"), None, id="Megatron wants to be resumed"),
        pytest.param("50", EXIT.format(code=9, signal="null"), 9, id="crashed"),
        pytest.param("100", EXIT.format(code=0, signal="null"), 0, id="finished"),
        pytest.param("100", EXIT.format(code=9, signal="null"), 0, id="finished, then crashed"),
        pytest.param("100", None, 0, id="finished, then killed"),
    ],
)
def test_guard(
    tmp_path: Path, shell: str, tracker: str | None, record: str | None, status: int | None
) -> None:
    previous = tmp_path / "it's" / "1"
    previous.mkdir(parents=True)
    if record:
        (previous / "exit.json").write_text(record)
    if tracker:
        (tmp_path / "tracker").write_text(f"{tracker}\n")
    prologue = chain_prologue(str(previous), str(tmp_path / "tracker"), 100)
    prologue = f"am_attempt_dir={shlex.quote(str(previous.parent))}\n{prologue}"
    done = subprocess.run(
        [shell, "-c", f"set -eu\n{prologue}\necho trains"], capture_output=True, text=True, check=False
    )
    if tracker != "100":  # for an unfinished previous attempt, Python and the shell decide in the same way
        assert runs_after(ExitRecord.from_json(read_object(record))) is (status is None)
    began_at = previous.parent / "began_at"
    assert (began_at.read_text() if began_at.exists() else None) == (
        f"{tracker or 0}\n" if status is None else None
    )
    assert (done.returncode, "trains" in done.stdout) == (0 if status is None else status, status is None)
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("rows", "queued", "waits"),
    [
        pytest.param("7", False, True, id="the first attempt runs"),
        pytest.param("7", True, False, id="an attempt that waits like this one"),
        pytest.param("", False, False, id="the lock is left from a lost node"),
    ],
)
def test_guard_beside_another_attempt(
    tmp_path: Path, shell: str, rows: str, queued: bool, waits: bool
) -> None:
    """A user removed the dependency of the second attempt."""
    previous = tmp_path / "stage" / "1"
    lock = previous / "run" / "lock.7.0"
    lock.parent.mkdir(parents=True)
    lock.touch()
    if queued:
        (previous / "chained").touch()
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho {rows}\n")
    (tmp_path / "squeue").chmod(0o755)
    own = previous.parent / "2"
    (own / "run").mkdir(parents=True)
    (own / "run" / "lock.8.0").touch()
    prologue = chain_prologue(str(previous), str(tmp_path / "tracker"), 100)
    script = f"set -eu\nexec 9>>{own}/run/lock.8.0\nflock 9\nam_attempt_dir={own}\n{prologue}\necho trains"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [shell, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first == (
            "airflow-megatron: attempt 1 still runs, as job 7; this one waits for its end\n"
            if waits
            else "trains\n"
        )
    assert process.communicate(timeout=30)[0] == ("trains\n" if waits else "")
    assert process.returncode == 0


def chained(slurm, request_for, count: int) -> str:
    """Submit attempts 1 … count, each behind the one before; return their stage's directory."""
    slurm.submit(request_for(1))
    for number in range(2, count + 1):
        dependency = f"afterany:{1000 + number - 1}"
        assert slurm.submit(request_for(number, dependencies=(dependency,), chained=True)).job_id
    return request_for(1).attempt.stage_dir


def state_of(slurm, stage_dir: str) -> StageRecord:
    return parse_stage_states([stage_dir], slurm.run(stage_state_script([stage_dir])))[stage_dir]


def withdrawn(slurm, stage_dir: str, after: int) -> list[int]:
    return parse_withdrawn(slurm.run(withdraw_chain_script(stage_dir, after)))


@pytest.mark.slow
def test_queued_attempts_are_withdrawn_newest_first(slurm, request_for):
    stage_dir = chained(slurm, request_for, 4)
    assert "--dependency=singleton,afterany:1003" in slurm.accepted("1004", "argv").splitlines()
    (slurm.root / "jobs" / "7").write_text("7|PENDING|1|(null)|sweep.point.train.a33\n")
    assert current_attempt(state_of(slurm, stage_dir)) == 1
    assert withdrawn(slurm, stage_dir, 2) == [3, 4]
    assert slurm.calls("scancel") == ["1004 1003"]
    assert slurm.jobs == ["1001", "1002", "7"]
    assert [attempt.number for attempt in state_of(slurm, stage_dir).attempts] == [1, 2]
    assert withdrawn(slurm, stage_dir, 2) == []
    assert withdrawn(slurm, stage_dir, 0) == [2], "the first attempt was not queued behind another"


@pytest.mark.slow
def test_a_pipe_in_place_of_a_record_does_not_prevent_the_withdrawal(slurm, request_for):
    stage_dir = chained(slurm, request_for, 3)
    record = Path(stage_dir) / "2" / "chained"
    record.unlink()
    os.mkfifo(record)
    assert withdrawn(slurm, stage_dir, 1) == [2, 3]
    assert slurm.calls("scancel") == ["1003"], "the name of the other job is not known"


@pytest.mark.slow
def test_number_of_a_withdrawn_attempt_is_free_again(slurm, request_for):
    stage_dir = chained(slurm, request_for, 2)
    withdrawn(slurm, stage_dir, 1)
    again = slurm.submit(request_for(2))
    assert (again.status, again.job_id) == ("submitted", "1003")
    assert [attempt.chained for attempt in state_of(slurm, stage_dir).attempts] == [False, False]
    assert withdrawn(slurm, stage_dir, 1) == []


@pytest.mark.slow
def test_without_an_answer_of_squeue_nothing_is_withdrawn(slurm, request_for):
    stage_dir = chained(slurm, request_for, 2)
    slurm.behave("squeue", 'echo "Socket timed out" >&2; exit 1')
    with pytest.raises(TransportError, match="Socket timed out"):
        withdrawn(slurm, stage_dir, 1)
    assert (Path(stage_dir) / "2").is_dir()


def test_the_attempt_that_is_due():
    verdict = RecordedVerdict.from_json({"outcome": "rolled_over", "reason": "x"})
    first = AttemptState(1, "7", "7", True, None)
    second = replace(first, number=2, chained=True)
    third = replace(second, number=3)
    judged = replace(first, verdict=verdict)
    assert current_attempt(StageRecord((), None)) == 0
    assert current_attempt(StageRecord((first, second, third), None)) == 1
    assert current_attempt(StageRecord((judged, second, third), None)) == 2
    assert current_attempt(StageRecord((judged, replace(second, verdict=verdict), third), None)) == 3
    # an attempt that is not chained is due, regardless of who judged the previous one
    assert current_attempt(StageRecord((first, replace(second, chained=False)), None)) == 2


def test_a_damaged_answer_of_a_withdrawal_is_an_error():
    with pytest.raises(TransportError):
        parse_withdrawn(CommandResult(0, f"{BEGIN}\nwithdrawn one\n{END}\n", ""))
