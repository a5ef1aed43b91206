"""Secrets of an attempt: its submission writes them, its job reads them, and then they are deleted."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.slurm.remote.secret_delivery import (
    MAX_BYTES,
    SecretValueError,
    checked_value,
    delivered_file,
    delivery_words,
    parse_removal,
    removal_script,
)
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.submission.attempt_chain import parse_withdrawn, withdraw_chain_script
from airflow_megatron.slurm.submission.job_array import (
    ArrayRequest,
    ArrayTask,
    array_decision_script,
    array_script,
    parse_array,
)
from airflow_megatron.slurm.submission.job_guard import job_epilogue, job_prologue
from airflow_megatron.slurm.submission.single_job import parse_submission, submission_script
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import parse_written, write_verdict_script
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict

SHELLS = {
    "dash": ["dash", "-s"],
    "bash": ["bash", "-s"],
    "careful bash": ["bash", "-e", "-u", "-C", "-f", "-s"],
    "traced": ["bash", "-x", "-s"],
}
VALUE = "hf_k3epTh1sOutOfS1ght"
ODD = {
    "quotes": 'it\'s "quoted" \\ `uname` $(uname) $HOME',
    "lines": "-----BEGIN KEY-----\nab/+=\n\n-----END KEY-----",
    "dos lines": "a\r\nb",
    "dash": "-n -e --help",
    "blanks": "  a\tb  ",
    "unicode": "Schlüssel 鍵 🔑 \u2028 \u0085 \x81",
    "controls": "".join(map(chr, range(1, 32))) + "\x7f.",
    "glob": "* ? [a-z] {a,b} ~",
    "line break first": "\n\nabc",
    "delimiter": "AM_x\nEOF\nM_0123456789abcdef",
    "equals": "A=B",
    "percent": "%s%n%%\\0\\x41",
    "one": "-",
    "64 KiB": "x" * 65536,
    "longest": "é" * (MAX_BYTES // 2),
}


def secrets_of(attempt: Attempt) -> dict[str, str]:
    folder = Path(attempt.directory) / "secrets"
    if not folder.exists():
        return {}
    assert folder.stat().st_mode & 0o777 == 0o700
    files = list(folder.iterdir())
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    return {path.name: path.read_bytes().decode() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_unusual_values_arrive_unchanged(shell, slurm, request_for):
    request = replace(request_for(), secrets={f"S{index}": value for index, value in enumerate(ODD.values())})
    done = subprocess.run(
        SHELLS[shell],
        input=submission_script(request).encode(),
        env=slurm.environment,
        capture_output=True,
        check=False,
    )
    result = CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert parse_submission(result).status == "submitted"
    assert not any(
        word in result.stdout + result.stderr for word in delivery_words({"A": ODD["lines"]}).split()[1:]
    )
    assert secrets_of(request.attempt) == request.secrets


@pytest.mark.slow
def test_no_other_part_of_a_submission_contains_them(slurm, request_for):
    request = replace(request_for(), secrets={"HF_TOKEN": VALUE})
    assert slurm.submit(request).status == "submitted"
    assert VALUE not in repr(request)
    forms = {VALUE, delivery_words({"A": VALUE}).split()[1]}
    own = Path(request.attempt.directory) / "secrets"
    for path in [*Path(request.attempt.directory).rglob("*"), *slurm.root.rglob("*")]:
        if path.is_file() and own not in path.parents:
            assert not any(form in path.read_text(errors="replace") for form in forms), path


@pytest.mark.slow
def test_a_submitted_attempt_gets_no_further_secrets(slurm, request_for):
    request = request_for()
    assert slurm.submit(request).status == "submitted"
    assert slurm.submit(replace(request, secrets={"HF_TOKEN": VALUE})).status == "recorded"
    assert secrets_of(request.attempt) == {}


@pytest.mark.slow
@pytest.mark.parametrize("refusal_text", ["Invalid account", "job submit limit"])
def test_a_refused_submission_leaves_no_secrets(refusal_text, slurm, request_for):
    slurm.behave("sbatch", f"echo 'sbatch: error: {refusal_text}' >&2; exit 1")
    request = replace(request_for(), secrets={"HF_TOKEN": VALUE})
    assert slurm.submit(request).status in ("refused", "deferred")
    assert secrets_of(request.attempt) == {}
    slurm.behave_normally("sbatch")
    again = replace(request, claim_token="later", secrets={"HF_TOKEN": "another"})
    assert slurm.submit(again).status == "submitted"
    assert secrets_of(request.attempt) == {"HF_TOKEN": "another"}


@pytest.mark.slow
def test_an_unknown_outcome_keeps_them(slurm, request_for):
    slurm.behave("sbatch", "accept \"$@\"; echo 'sbatch: error: Socket timed out' >&2; exit 1")
    request = replace(request_for(), secrets={"HF_TOKEN": VALUE})
    assert slurm.submit(request).status == "adopted"
    assert secrets_of(request.attempt) == {"HF_TOKEN": VALUE}


@pytest.mark.parametrize("obstacle", ["link", "file", "open folder"])
def test_they_are_written_into_no_folder_of_others(obstacle, slurm, request_for, tmp_path):
    request = replace(request_for(), secrets={"HF_TOKEN": VALUE})
    place = Path(request.attempt.directory) / "secrets"
    place.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if obstacle == "link":
        place.symlink_to(elsewhere)
    elif obstacle == "file":
        place.write_text("")
    else:
        place.mkdir(mode=0o755)
    outcome = slurm.submit(request)
    assert outcome.status == "refused"
    assert "is not a private folder of this user" in outcome.message
    assert list(elsewhere.iterdir()) == []
    assert slurm.calls("sbatch") == []


@pytest.fixture
def array(tmp_path: Path) -> ArrayRequest:
    tasks = [
        ArrayTask(
            attempt=Attempt(f"s.{point}.work.a1", str(tmp_path / "it's" / point / "work"), 1),
            script="#!/bin/bash\ntrue\n",
            job_json={},
            log_file=str(tmp_path / "it's" / point / "log"),
            work_dir=str(tmp_path / "it's" / point),
            secrets={"HF_TOKEN": f"{VALUE} of {point}", "B": ODD["quotes"]},
        )
        for point in "abc"
    ]
    return ArrayRequest(Attempt("s.work.array.t1", str(tmp_path / "arrays"), 1), tasks, (), 2, "t1")


@pytest.mark.slow
def test_each_task_of_an_array_has_its_own(slurm, array):
    assert parse_array(slurm.run(array_script(array))).indices == {0, 1, 2}
    for task in array.tasks:
        assert secrets_of(task.attempt) == task.secrets
    assert VALUE not in slurm.accepted("1001", "script") + slurm.accepted("1001", "argv")
    assert VALUE not in slurm.accepted("1001", "env")


@pytest.mark.slow
def test_an_array_that_is_given_up_leaves_none(slurm, array):
    slurm.behave("sbatch", "echo 'sbatch: error: Invalid job array specification' >&2; exit 1")
    assert parse_array(slurm.run(array_script(array))).submission.status == "refused"
    parse_array(slurm.run(array_decision_script(array.array, "later")))
    assert [secrets_of(task.attempt) for task in array.tasks] == [{}, {}, {}]


@pytest.mark.slow
def test_a_withdrawn_attempt_leaves_none(slurm, request_for):
    request = replace(request_for(), chained=True, secrets={"HF_TOKEN": VALUE})
    assert slurm.submit(request).status == "submitted"
    stage_dir = request.attempt.stage_dir
    assert parse_withdrawn(slurm.run(withdraw_chain_script(stage_dir, 0))) == [1]
    assert [path.name for path in Path(stage_dir).rglob("secrets")] == []


@pytest.mark.slow
def test_removal_may_be_repeated(slurm, request_for):
    request = replace(request_for(), secrets={"HF_TOKEN": VALUE})
    slurm.submit(request)
    for _ in range(2):
        parse_removal(slurm.run(removal_script(request.attempt.directory)))
        assert secrets_of(request.attempt) == {}


@pytest.mark.slow
def test_an_attempt_with_a_verdict_has_none(slurm, request_for):
    request = replace(request_for(), secrets={"HF_TOKEN": VALUE})
    slurm.submit(request)
    stage_dir = request.attempt.stage_dir
    parse_written(
        slurm.run(write_verdict_script(stage_dir, RecordedVerdict.of(Verdict(Outcome.FAILED, "x"), 2)))
    )
    assert secrets_of(request.attempt) == {"HF_TOKEN": VALUE}
    parse_written(
        slurm.run(write_verdict_script(stage_dir, RecordedVerdict.of(Verdict(Outcome.FAILED, "x"), 1)))
    )
    assert secrets_of(request.attempt) == {}


def run_job(directory: Path, command: str, secrets: dict[str, str], shell: str = "bash", **more: str) -> int:
    """Run a job's script on secrets that were delivered; return its exit status."""
    folder = directory / "secrets"
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    (directory / "jobid").write_text("7\n")  # as the submitter does
    for name, value in secrets.items():
        (folder / name).write_bytes(value.encode())
        (folder / name).chmod(0o600)
    reading = [f"am_secret {name} {quote(delivered_file(str(directory), name))} || exit" for name in secrets]
    script = "\n".join(
        (job_prologue(str(directory)), shell_file("job_secret"), *reading, command, job_epilogue())
    )
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **more}
    done = subprocess.run(
        [shell], input=script.encode(), env=environment, capture_output=True, check=False, timeout=120
    )
    assert not any(
        value.encode() in done.stdout + done.stderr for value in secrets.values() if len(value) > 5
    )
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_job_sees_unusual_values_unchanged(shell, tmp_path):
    few = {f"S{index}": value for index, value in enumerate(ODD.values()) if len(value) < 1000}
    assert run_job(tmp_path / "1", f"env -0 >{tmp_path}/seen", few, shell) == 0
    seen = dict(item.partition("=")[::2] for item in (tmp_path / "seen").read_bytes().decode().split("\0"))
    assert {name: seen[name] for name in few} == few


@pytest.mark.parametrize("name", ["64 KiB", "longest"])
def test_a_job_sees_a_long_value(name, tmp_path):
    assert run_job(tmp_path / "1", f"env -0 >{tmp_path}/seen", {"S": ODD[name]}) == 0
    assert f"S={ODD[name]}\0" in (tmp_path / "seen").read_text()


def test_line_breaks_at_the_end_are_left_out(tmp_path):
    assert run_job(tmp_path / "1", f'printf %s "$S" >{tmp_path}/seen', {"S": "abcdef\n\n"}) == 0
    assert (tmp_path / "seen").read_text() == "abcdef"


@pytest.mark.parametrize("value", ["a" * (MAX_BYTES + 1), "a\0b", "", "\n\n"])
def test_a_job_with_a_file_that_no_variable_can_hold_does_not_run(value, tmp_path):
    assert run_job(tmp_path / "1", f"touch {tmp_path}/ran", {"S": value}) == 77
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "value", ["", "\n", "\n\n", "a\0b", "\0", "x" * (MAX_BYTES + 1), "é" * MAX_BYTES, "\ud800"]
)
def test_values_that_no_variable_can_hold(value):
    with pytest.raises(SecretValueError) as refusal:
        checked_value(value)
    assert not value.strip() or value[:3] not in str(refusal.value)


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_values_that_a_variable_can_hold(value):
    assert checked_value(value) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status", "left"),
    [
        ("true", 0, False),
        ("false", 1, True),  # Slurm may be set up to launch it again (RequeueExit)
        ("kill -TERM $$; sleep 1; true", 0, True),  # as before a requeue
        ("kill -KILL $$", -9, True),  # a node that fails
    ],
)
def test_they_stay_for_a_job_that_slurm_may_launch_again(command, status, left, tmp_path):
    directory = tmp_path / "1"
    assert run_job(directory, command, {"S": VALUE}) == status
    assert (directory / "secrets").exists() == left
    if left:
        command = f'[ "$S" = {VALUE} ]'
        assert run_job(directory, command, {"S": VALUE}, SLURM_RESTART_COUNT="1") == 0
        assert not (directory / "secrets").exists()
