"""The scripts run in every shell that /bin/sh can be on a login node, and in a login shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.quoting import QuotingError
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.states.observation import CommandAnswer, Watch
from airflow_megatron.slurm.submission.cancellation import cancel_script, parse_cancel
from airflow_megatron.slurm.submission.single_job import parse_submission, submission_script
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import (
    parse_stage_states,
    parse_written,
    stage_state_script,
    write_verdict_script,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict

SHELLS = {
    "dash": ["dash", "-s"],
    "bash": ["bash", "-s"],
    "bash as sh": ["bash", "--posix", "-s"],
    "careful bash": ["bash", "-e", "-u", "-C", "-f", "-s"],
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_whole_conversation(shell, slurm, request_for, tmp_path):
    def run(script: str) -> CommandResult:
        done = subprocess.run(
            SHELLS[shell], input=script, env=slurm.environment, capture_output=True, text=True, check=False
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    assert parse_submission(run(submission_script(request_for()))).status == "submitted"
    assert parse_submission(run(submission_script(request_for()))).status == "recorded"
    stage_dir = request_for().attempt.stage_dir
    verdict = RecordedVerdict.of(Verdict(Outcome.FAILED, "x"), 1)
    parse_written(run(write_verdict_script(stage_dir, verdict)))
    state = parse_stage_states([stage_dir], run(stage_state_script([stage_dir])))[stage_dir]
    assert (state.job_id, state.verdict) == ("1001", verdict)
    log = tmp_path / "log"
    log.write_bytes(b"\x00\xffabc\n")
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "iter_0000001").mkdir(parents=True)
    (checkpoints / "iter_0000001" / "f").write_bytes(b"12")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("1")
    watches = [
        Watch(
            key="x",
            job_id="1001",
            log_file=str(log),
            checkpoint_dir=str(checkpoints),
            check_files=(str(log), "/absent"),
            globs=(f"{checkpoints}/*/f",),
        ),
        Watch(key="y", job_id="5"),
    ]
    seen = parse_poll(watches, run(poll_script(watches)))
    assert seen["x"].queue.name == "sweep.point.train.a1"
    assert seen["x"].log_chunk == log.read_bytes()
    assert seen["x"].checkpoint_files == {"iter_0000001": {"f": 2}}
    assert seen["x"].tracker == "1"
    assert seen["x"].existing == {str(log): True, "/absent": False}
    assert seen["x"].matches[f"{checkpoints}/*/f"] == (f"{checkpoints}/iter_0000001/f",)
    assert seen["y"].queue is None
    assert len(slurm.calls("sacct")) == 1
    jobs = [("1001", "sweep.point.train.a1")]
    assert parse_cancel(jobs, run(cancel_script(jobs))).cancelled == ("1001",)


@pytest.mark.slow
def test_login_shell_reads_the_profile_and_survives_its_noise(slurm, request_for, tmp_path):
    bin_dir = slurm.root / "bin"
    (tmp_path / ".bash_profile").write_text(
        f"echo 'Welcome to the cluster'; echo warning >&2; set -u; PATH={bin_dir}:$PATH; export SQUEUE_FORMAT=%i\n"
        "alias rm='rm -i'; printf 'no newline'\n"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "FAKE_SLURM": str(slurm.root)}

    def run(script: str, commands: SlurmCommands) -> CommandResult:
        done = subprocess.run(
            ["/bin/sh", "-c", commands.remote_shell()],
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    login = SlurmCommands(login_shell=True)
    assert parse_submission(run(submission_script(request_for(), login), login)).status == "submitted"
    watches = [Watch(key="x", job_id="1001")]
    assert parse_poll(watches, run(poll_script(watches, login), login))["x"].queue is not None
    elsewhere = SlurmCommands(slurm_bin=str(bin_dir))
    assert parse_poll(watches, run(poll_script(watches, elsewhere), elsewhere))["x"].queue is not None


def test_a_missing_folder_for_temporary_files_is_replaced(slurm, tmp_path, monkeypatch):
    (tmp_path / "found").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "of compute nodes"))
    watch = Watch(key="x", globs=(f"{tmp_path}/fo*",), commands=("echo yes",))
    seen = parse_poll([watch], slurm.run(poll_script([watch])))["x"]
    assert seen.matches == {f"{tmp_path}/fo*": (f"{tmp_path}/found",)}
    assert seen.answers == {"echo yes": CommandAnswer(0, "yes\n")}
    assert seen.errors == ()


def test_relative_directory_of_commands_is_refused():
    with pytest.raises(QuotingError):
        SlurmCommands(slurm_bin="opt/slurm/bin")


def test_a_running_process_keeps_its_functions_during_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", mock.Mock(side_effect=AssertionError("another version's file")))
    shell_file.cache_clear()
    assert "am_checkpoints()" in shell_file("poll")
