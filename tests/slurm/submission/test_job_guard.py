from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.exit_codes import DUPLICATE_EXIT_CODE
from airflow_megatron.slurm.submission.job_guard import job_epilogue, job_prologue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHELLS = ["bash", "sh"]


def hastened(prologue: str) -> str:
    """Shorten the waits for a record that never comes."""
    assert "1 2 3 4 5 6 7 8 9 10" in prologue
    assert prologue.count("sleep 1\n") == 2
    return prologue.replace("1 2 3 4 5 6 7 8 9 10", "1").replace("sleep 1\n", "sleep 0.2\n")


ARRAY_TASK = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}


class Job:
    """Starts job scripts as slurmd does: in a separate shell with SLURM_* variables."""

    def __init__(self, directory: Path, shell: str) -> None:
        self.attempt_dir = directory / "it's" / "1"
        self.attempt_dir.mkdir(parents=True)
        self.shell = shell

    def start(
        self,
        body: str,
        job_id: str = "7",
        restarts: int = 0,
        environment: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        **options: str,
    ) -> subprocess.Popen[str]:
        prologue = hastened(job_prologue(str(self.attempt_dir), **options))
        script = f"#!/bin/{self.shell}\nset -eu\n{prologue}\n{body}\n{job_epilogue()}"
        path = self.attempt_dir / f"script.{job_id}"
        path.write_text(script)
        environment = {
            **os.environ,
            "SLURM_JOB_ID": job_id,
            "SLURM_JOB_NODELIST": "n[1-2]",
            **(environment or {}),
        }
        if restarts:
            environment["SLURM_RESTART_COUNT"] = str(restarts)
        return subprocess.Popen(
            [self.shell, str(path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=start_new_session,
        )

    def run(self, body: str, **options) -> tuple[int, str, str]:
        process = self.start(body, **options)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def record(self, number: str = "7") -> None:
        (self.attempt_dir / "jobid").write_text(f"{number}\n")

    @property
    def exit(self) -> ExitRecord | None:
        path = self.attempt_dir / "exit.json"
        return ExitRecord.from_json(json.loads(path.read_text())) if path.exists() else None


@pytest.fixture(params=SHELLS)
def shell(request):
    return request.param


@pytest.fixture
def job(tmp_path, shell):
    return Job(tmp_path, shell)


def test_an_attempt_that_counts_as_ended_does_not_run(job):
    job.record()
    (job.attempt_dir / "verdict.json").touch()
    status, out, err = job.run("echo work", restarts=1)
    assert (status, out, job.exit) == (DUPLICATE_EXIT_CODE, "", None)
    assert err.strip() == (
        "airflow-megatron: this attempt counts as ended, by its verdict.json; job 7 does not run. "
        "To run it again, clear its task in Airflow instead of requeueing the job"
    )


@pytest.mark.parametrize("code", [0, 1, 16])
def test_status_is_passed_on_and_recorded(job, code):
    job.record("7;cluster")
    status, out, _ = job.run(f"echo before; am_run sh -c 'echo work; exit {code}'")
    assert (status, out) == (code, "before\nwork\n")
    assert job.exit is not None
    assert (job.exit.exit_code, job.exit.signal, job.exit.nodes, job.exit.job_id) == (
        code,
        None,
        "n[1-2]",
        "7",
    )
    assert job.exit.ended >= job.exit.started > time.time() - 60
    assert (job.attempt_dir / "run" / "job_id").read_text() == "7\n"


def test_another_job_does_not_run(job):
    job.record("7")
    status, out, err = job.run("echo ran", job_id="8")
    assert (status, out) == (DUPLICATE_EXIT_CODE, "")
    assert "job 7 owns this attempt" in err
    assert job.exit is None
    assert job.run("echo ran")[1] == "ran\n"


@pytest.mark.parametrize("content", [b"\0" * 64, b"garbage \xff {\n", b"\n"])
def test_damaged_record_does_not_name_another_job(job, content):
    (job.attempt_dir / "jobid").write_bytes(content)
    assert job.run("echo ran")[:2] == (0, "ran\n")
    assert job.run("echo ran", job_id="8")[0] == DUPLICATE_EXIT_CODE


def test_first_to_start_wins_when_the_other_was_recorded_later(job):
    (job.attempt_dir / "run").mkdir()
    (job.attempt_dir / "run" / "job_id").write_text("8\n")
    job.record("7")
    assert job.run("echo ran")[0] == DUPLICATE_EXIT_CODE


@pytest.mark.slow
def test_two_unrecorded_jobs_one_runs(job):
    processes = [job.start("echo ran; sleep 0.5", job_id=str(number)) for number in (7, 8)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert sorted(process.returncode for process in processes) == [0, DUPLICATE_EXIT_CODE]
    assert sorted(out for out, _ in outputs) == ["", "ran\n"]


def test_a_requeued_job_continues_and_keeps_both_records(job):
    job.record()
    job.run("exit 3")
    assert job.run("exit 4", restarts=1)[0] == 4
    assert job.exit is not None
    assert (job.exit.exit_code, job.exit.restart_count) == (4, 1)
    assert json.loads((job.attempt_dir / "exit.0.json").read_text())["exit_code"] == 3


@pytest.mark.slow
def test_job_relaunched_after_its_success_does_not_run_again(job):
    assert job.run("echo first")[:2] == (0, "first\n")
    record = job.exit
    status, output, _ = job.run("echo second")
    assert (status, output.count("second"), job.exit) == (0, 0, record)
    assert "job 7 has already succeeded" in output


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"", b"\0" * 64])
def test_record_of_a_job_that_is_not_run_again_is_restored(job, content):
    job.run("echo first")
    record, file = job.exit, job.attempt_dir / "exit.json"
    file.unlink() if content is None else file.write_bytes(content)
    status, output, _ = job.run("echo second")
    assert (status, output.count("second"), job.exit) == (0, 0, record)


def started_again(job: Job, body: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Start a job that runs *body*, and, while it does, the same job again: the second one waits."""
    job.record()
    first = job.start(f'touch "$am_attempt_dir/ready"; {body}')
    wait_for(job.attempt_dir / "ready")
    second = job.start("echo second")
    assert second.stdout is not None
    assert "job 7 is already running" in second.stdout.readline()
    return first, second


@pytest.mark.slow
def test_job_that_slurm_starts_again_while_it_runs_waits_for_its_end(job):
    first, second = started_again(job, 'until [ -e "$am_attempt_dir/go" ]; do sleep 0.1; done')
    (job.attempt_dir / "go").touch()
    output, _ = second.communicate(timeout=60)
    assert (first.wait(timeout=60), second.returncode, output.count("second")) == (0, 0, 0)


def test_job_that_was_started_again_runs_when_its_first_start_is_killed(job):
    first, second = started_again(job, "am_run sleep 30")
    first.kill()  # its command lives on for a while, as after a node's failure: it does not hold the lock
    assert second.communicate(timeout=60)[0] == "second\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "options"),
    [("exit 4", {}), ("kill -TERM $$", {}), ("true", {"restarts": 1})],
    ids=["failed", "stopped", "requeued"],
)
def test_job_that_slurm_starts_again_for_a_reason_runs(job, body, options):
    job.run(body)
    assert job.run("echo second", **options)[:2] == (0, "second\n")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_stop_signals_reach_the_command_which_saves_and_ends(tmp_path, shell):
    """All pairs of a signal that Slurm sends and one that the command understands, side by side: they mostly wait."""
    started = {}
    for sent, forwarded in itertools.product(("TERM", "USR1", "USR2"), ("TERM", "USR1")):
        job = Job(tmp_path / f"{sent}-{forwarded}", shell)
        job.record()
        command = f"""
import pathlib, signal, sys, time
def stop(*_):
    time.sleep(0.3)
    pathlib.Path({str(job.attempt_dir / "saved")!r}).touch()
    sys.exit(5)
signal.signal(signal.SIG{forwarded}, stop)
pathlib.Path({str(job.attempt_dir / "ready")!r}).touch()
time.sleep(300)
"""
        (job.attempt_dir / "work.py").write_text(command)
        body = 'am_run python3 "$am_attempt_dir/work.py" || exit $?'
        started[sent, forwarded] = job, job.start(body, stop_signal=forwarded)
    for job, _ in started.values():
        wait_for(job.attempt_dir / "ready")
    for _ in range(2):  # Slurm repeats itself
        for (sent, _), (_, process) in started.items():
            process.send_signal(getattr(signal, f"SIG{sent}"))
        time.sleep(0.1)
    for (sent, _), (job, process) in started.items():
        process.communicate(timeout=60)
        assert process.returncode == 5
        assert (job.attempt_dir / "saved").exists()
        assert job.exit is not None
        assert (job.exit.exit_code, job.exit.signal) == (5, sent)


@pytest.mark.slow
def test_command_without_a_handler_ends_by_the_signal(job):
    job.record()
    process = job.start(
        "export am_attempt_dir; am_run sh -c 'touch \"$am_attempt_dir/ready\"; exec sleep 300'"
    )
    wait_for(job.attempt_dir / "ready")
    time.sleep(0.2)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert job.exit is not None
    assert (job.exit.exit_code, job.exit.signal) == (143, "TERM")


def test_a_signal_after_the_command_has_ended_adds_nothing_to_the_log(job):
    gone = subprocess.Popen(["true"])
    gone.wait()
    status, _, err = job.run(f"am_child={gone.pid}\nkill -TERM $$\nam_child=")
    assert (status, err) == (0, "")
    assert job.exit.signal == "TERM"


@pytest.mark.slow
def test_a_signal_before_the_command_begins_ends_the_job(job):
    """Such as a cancellation while modules are loaded."""
    job.record()
    process = job.start(
        'export am_attempt_dir; touch "$am_attempt_dir/ready"\n'
        'until [ -e "$am_attempt_dir/go" ]; do sleep 0.1; done\n'
        "am_run sh -c 'touch \"$am_attempt_dir/ran\"'"
    )
    wait_for(job.attempt_dir / "ready")
    process.send_signal(signal.SIGTERM)
    (job.attempt_dir / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not (job.attempt_dir / "ran").exists()
    assert job.exit is not None
    assert (job.exit.exit_code, job.exit.signal) == (128 + signal.SIGTERM, "TERM")


@pytest.mark.slow
def test_a_signal_that_reaches_the_command_first_is_recorded(job):
    """Slurm signals the processes of a job one after the other."""
    job.record()
    process = job.start(
        "export am_attempt_dir; am_run sh -c 'touch \"$am_attempt_dir/ready\"; kill -s TERM $$'"
    )
    wait_for(job.attempt_dir / "ready")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert job.exit is not None
    assert (job.exit.exit_code, job.exit.signal) == (128 + signal.SIGTERM, "TERM")


@pytest.mark.slow
def test_a_signal_to_all_processes_at_any_instant_stops_the_job(tmp_path, shell):
    """As Slurm does: the script's fork may not have executed the command yet, or end together with the signal."""
    chance = random.Random(1)
    for number in range(60):
        job = Job(tmp_path / str(number), shell)
        job.record()
        process = job.start("echo began; am_run sleep 300", start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        due = time.perf_counter() + chance.uniform(0, 0.003)
        while time.perf_counter() < due:
            pass
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 128 + signal.SIGTERM
        assert job.exit is not None
        assert (job.exit.exit_code, job.exit.signal) == (128 + signal.SIGTERM, "TERM")


@pytest.mark.slow
def test_missing_attempt_directory(job, tmp_path):
    script = hastened(job_prologue("/proc/nowhere/1")) + "echo ran\n"
    environment = {**os.environ, "SLURM_JOB_ID": "7"}
    result = subprocess.run(
        [job.shell, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 73
    assert result.stdout == ""
    assert "cannot write to /proc/nowhere/1" in result.stderr


def test_unknown_stop_signal():
    with pytest.raises(ValueError, match="stop_signal"):
        job_prologue("/x", stop_signal="KILL")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_that_an_earlier_job_wrote(tmp_path: Path, shell: str) -> None:
    job = Job(tmp_path, shell)
    job.record()
    file = tmp_path / "it's a value"
    file.write_text("1e-3 \\n $x\nsecond line\n")
    body = f"am_value_0=$(am_file_value {quote(str(file))}) || exit\nprintf '%s' \"$am_value_0\""
    assert job.run(body)[:2] == (0, "1e-3 \\n $x")
    for text in ("", "\n"):
        file.write_text(text)
        status, out, err = job.run(body, restarts=1)
        assert (status, out) == (66, "")
        assert f"{file} contains no value" in err
    file.unlink()
    assert job.run(body, restarts=2)[0] == 66
    assert json.loads((job.attempt_dir / "exit.json").read_text())["exit_code"] == 66


def test_task_of_an_array_is_known_by_its_index(job):
    """Its job id differs; squeue, sacct and scancel accept the index."""
    job.record("40_3;;s.work.array.t1")
    task = {**ARRAY_TASK, "AIRFLOW_MEGATRON_ARRAY_TASK": "40_3"}
    assert job.run("exit 3", job_id="44", environment=task)[0] == 3
    assert job.exit.job_id == "40_3"
    assert (job.attempt_dir / "run" / "job_id").read_text() == "40_3\n"
    status, _, err = job.run("echo ran", job_id="45", environment={**task, "SLURM_ARRAY_TASK_ID": "4"})
    assert status == DUPLICATE_EXIT_CODE
    assert "job 40_3 owns this attempt; job 45 does not run" in err


def test_array_requested_by_the_script_changes_no_id(job):
    job.record("44")
    assert job.run("exit 0", job_id="44", environment=ARRAY_TASK)[0] == 0
    assert job.exit.job_id == "44"
