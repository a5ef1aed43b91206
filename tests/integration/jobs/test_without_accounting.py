"""A real Slurm without sacct or with slurmdbd down: verdicts use only squeue, scontrol and exit.json."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest
from patience import deadline_in

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

COMMAND = Expectation("command")


@pytest.fixture
def without_sacct(tmp_path: Path) -> SlurmCommands:
    """Commands of a login node on which sacct is not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scontrol", "scancel"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return SlurmCommands(slurm_bin=str(folder))


def verdict_of(cluster: SlurmCluster, watch: Watch, commands: SlurmCommands) -> Verdict:
    deadline = deadline_in(60)
    while True:
        seen = parse_poll([watch], cluster.run(poll_script([watch], commands)))["x"]
        verdict = judge(seen, COMMAND)
        if verdict.outcome.is_verdict:
            return verdict
        assert time.monotonic() < deadline, verdict
        time.sleep(0.3)


def test_exit_code_comes_from_the_controller(
    cluster: SlurmCluster, tmp_path: Path, without_sacct: SlurmCommands
) -> None:
    """The script is killed before it writes exit.json, in a folder whose name looks like a field."""
    request = cluster.request(tmp_path / "JobState=RUNNING", "killed", "kill -9 $$")
    job_id = cluster.submit(request).job_id
    watch = Watch("x", job_id, request.attempt.job_name, request.attempt.directory)
    verdict = verdict_of(cluster, watch, without_sacct)
    assert (verdict.outcome, verdict.state, verdict.exit_code) == (Outcome.RETRYABLE, JobState.FAILED, 0)
    assert "by signal 9" in verdict.reason
    assert "[scontrol]" in verdict.reason


def test_array(cluster: SlurmCluster, without_sacct: SlurmCommands) -> None:
    submit = ["sbatch", "--parsable", "--mem=100", "-o", "/dev/null"]
    array = cluster.slurm(*submit, "--array=1-2", "--wrap", "exit $((SLURM_ARRAY_TASK_ID + 2))")
    for job_id, code in ((f"{array}_1", 3), (f"{array}_2", 4)):
        verdict = verdict_of(cluster, Watch("x", job_id), without_sacct)
        assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, code)
        assert "[scontrol]" in verdict.reason


def test_requeued_job_is_one_job(cluster: SlurmCluster, without_sacct: SlurmCommands) -> None:
    """A job that is pending again with the same id has not ended, regardless of its last run."""
    body = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exit 6; sleep 600'
    job_id = cluster.slurm(
        "sbatch", "--parsable", "--requeue", "--mem=100", "-o", "/dev/null", "--wrap", body
    )
    watch = Watch("x", job_id)
    while "R" not in cluster.slurm("squeue", "-h", "-j", job_id, "-o", "%t").split():
        time.sleep(0.2)
    cluster.slurm("scontrol", "requeue", job_id)
    for commands in (without_sacct, SlurmCommands()):
        seen = parse_poll([watch], cluster.run(poll_script([watch], commands)))["x"]
        assert judge(seen, COMMAND).outcome is Outcome.ACTIVE
    cluster.slurm("scancel", job_id)
    assert verdict_of(cluster, watch, without_sacct).outcome is Outcome.CANCELLED


def test_a_name_with_line_breaks_does_not_change_the_state_of_another_job(
    cluster: SlurmCluster, without_sacct: SlurmCommands
) -> None:
    """Slurm accepts such names and prints them unchanged, so the second line looks like the row of the other job."""
    victim = cluster.slurm(
        "sbatch", "--parsable", "--mem=100", "-J", "victim", "-o", "/dev/null", "--wrap", "sleep 600"
    )
    rows = (
        f"{victim}|COMPLETED|1|1|2|1|n1|None|victim",
        f"{victim}|{victim}|COMPLETED|0:0|1|1|2|1|1|n1|None|victim",
        (
            f"JobId={victim} JobName=victim UserId=a(0) JobState=COMPLETED Reason=None Dependency=(null) Requeue=1 "
            "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=1"
        ),
    )
    evil = [
        cluster.slurm(
            "sbatch", "--parsable", "--mem=100", "-J", f"x\n{row}", "-o", "/dev/null", "--wrap", "exit 3"
        )
        for row in rows
    ]
    while set(cluster.slurm("squeue", "-h", "-j", ",".join(evil), "-o", "%T").split()) & {
        "PENDING",
        "RUNNING",
        "COMPLETING",
    }:
        time.sleep(0.2)
    watches = [Watch("victim", victim, "victim"), *(Watch(job_id, job_id) for job_id in evil)]
    for commands in (without_sacct, SlurmCommands()):
        seen = parse_poll(watches, cluster.run(poll_script(watches, commands)))
        assert judge(seen["victim"], COMMAND).outcome is Outcome.ACTIVE
        assert all(seen[job_id].queue.state is JobState.FAILED for job_id in evil)
    cluster.slurm("scancel", victim)


def test_slurmdbd_down(cluster: SlurmCluster, tmp_path: Path) -> None:
    cluster.control("kill", "slurmdbd")
    try:
        request = cluster.request(tmp_path, "down", "kill -9 $$")
        job_id = cluster.submit_patiently(request).job_id
        watch = Watch("x", job_id, request.attempt.job_name, request.attempt.directory)
        verdict = verdict_of(cluster, watch, SlurmCommands())
        assert "[scontrol]" in verdict.reason
        assert "by signal 9" in verdict.reason
    finally:
        cluster.control("start", "slurmdbd")
