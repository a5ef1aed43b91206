from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.cancellation import cancel_script, parse_cancel, withdraw_script
from airflow_megatron.slurm.submission.single_job import submission_script


def cancel(slurm, *jobs):
    return parse_cancel(jobs, slurm.run(cancel_script(jobs)))


@pytest.mark.slow
def test_only_our_own_jobs_are_cancelled(slurm, request_for):
    slurm.submit(request_for(1))
    slurm.submit(request_for(2))
    (slurm.root / "jobs" / "7").write_text("7|RUNNING|1|(null)|somebody.else\n")
    outcome = cancel(slurm, ("1001", "sweep.point.train.a1"), ("7", "sweep.point.train.a3"), ("8", "gone"))
    assert outcome.cancelled == ("1001",)
    assert outcome.absent == ("7", "8")
    assert slurm.calls("scancel") == ["1001"]
    assert slurm.jobs == ["1002", "7"]


@pytest.mark.slow
def test_many_jobs_take_one_command(slurm):
    for number in range(1, 1201):
        (slurm.root / "jobs" / str(number)).write_text(f"{number}|RUNNING|1|(null)|j{number}\n")
    outcome = cancel(slurm, *((str(number), f"j{number}") for number in range(1, 1201)))
    assert len(outcome.cancelled) == 1200
    assert slurm.jobs == []
    assert len(slurm.calls("scancel")) == 3


def test_nothing_to_cancel(slurm):
    assert cancel(slurm, ("1", "a")).absent == ("1",)
    assert cancel(slurm).cancelled == ()
    assert slurm.calls("scancel") == []


def test_silent_controller_is_an_error(slurm):
    slurm.behave("squeue", 'echo "slurm_load_jobs error: Socket timed out" >&2; exit 1')
    with pytest.raises(TransportError, match="Socket timed out"):
        cancel(slurm, ("1", "a"))


def withdraw(slurm, attempt):
    return parse_cancel((), slurm.run(withdraw_script(attempt)))


@pytest.mark.slow
def test_the_job_of_a_withdrawn_attempt_is_cancelled_without_a_recorded_id(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; kill -9 $$')
    slurm.behave("squeue", "exit 1")
    request = request_for(1)
    assert slurm.submit(request).status == "pending"
    slurm.behave_normally("sbatch")
    slurm.behave_normally("squeue")
    slurm.submit(request_for(2))
    assert withdraw(slurm, request.attempt).cancelled == ("1001",)
    assert slurm.jobs == ["1002"]


@pytest.mark.slow
def test_a_submission_in_progress_cancels_its_new_job(slurm, request_for):
    slurm.behave("sbatch", 'until [ -e "$FAKE_SLURM/go" ]; do sleep 0.05; done; accept "$@"; echo $id')
    request = request_for()
    process = slurm.start(submission_script(request))
    while not slurm.calls("sbatch"):
        time.sleep(0.02)
    assert withdraw(slurm, request.attempt).cancelled == ()
    (slurm.root / "go").touch()
    process.communicate(timeout=60)
    assert slurm.calls("scancel") == ["1001"]
    assert slurm.jobs == []


def test_nothing_is_submitted_for_a_withdrawn_attempt(slurm, request_for):
    request = request_for()
    Path(request.attempt.directory).mkdir(parents=True)
    withdraw(slurm, request.attempt)
    outcome = slurm.submit(request)
    assert outcome.status == "refused"
    assert "withdrawn when its run was stopped" in outcome.message
    assert slurm.calls("sbatch") == []


def test_without_a_written_mark_there_is_no_withdrawal(slurm, request_for):
    with pytest.raises(TransportError, match=r"cannot write .*withdrawn"):
        withdraw(slurm, request_for().attempt)


def rename(slurm, job_id, name):
    path = slurm.root / "jobs" / job_id
    path.write_text(path.read_text().rpartition("|")[0] + f"|{name}\n")


def test_a_renamed_job_is_cancelled(slurm, request_for):
    """Users rename jobs with ``scontrol update``; the comment of a job still has its first name."""
    request = request_for(1)
    slurm.submit(request)
    rename(slurm, "1001", "x")
    assert cancel(slurm, ("1001", "sweep.point.train.a10")).cancelled == ()
    assert cancel(slurm, ("1001", "sweep.point.train.a1")).cancelled == ("1001",)
    assert slurm.jobs == []


def test_the_renamed_job_of_a_withdrawn_attempt_is_cancelled_without_a_recorded_id(slurm, request_for):
    request = request_for(1)
    slurm.submit(request)
    rename(slurm, "1001", "x")
    assert withdraw(slurm, request.attempt).cancelled == ("1001",)
