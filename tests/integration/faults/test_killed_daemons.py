"""The daemons of the cluster are killed and restarted."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from driven_job import DrivenJob, environment
from patience import deadline_in, patient, wait_until
from watched_jobs import COMMAND, observe, until, verdict_of, wait_for, watch_for

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.submission.single_job import submission_script
from airflow_megatron.slurm.verdicts.missing_job import MissingJob
from airflow_megatron.slurm.verdicts.verdict import Outcome, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxied_site import ProxiedSite
    from slurm_cluster import SlurmCluster

    from airflow_megatron.slurm.verdicts.verdict import Verdict

pytestmark = pytest.mark.integration

AWAY = """\
name: away
point: only
slurm: {time: 5m, mem: 50M}
stages:
  work: {kind: command, command: ["true"]}
"""


def is_running(verdict: Verdict) -> bool:
    return verdict.state is JobState.RUNNING


def names_below(process: psutil.Process) -> set[str]:
    """Return the names of the child processes of a process."""
    found = set()
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.add(child.name())
    return found


def start_now(cluster: SlurmCluster, job_id: str | None) -> None:
    """Start a job that waits for its time.

    slurmctld refuses while slurmdbd has not answered for that job, and right after its start it has answered with a
    message of another type, for which scontrol fails.
    """

    def is_accepted() -> bool:
        try:
            cluster.slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now")
        except subprocess.CalledProcessError as error:
            if not any(text in error.stderr for text in ("try again", "Unexpected message received")):
                raise
            return False
        return True

    wait_until(is_accepted, 30, "slurmctld to take the start time")


def test_ssh_server_dies_with_a_submission(proxied: ProxiedSite, tmp_path: Path) -> None:
    """Listener, session and the shell of the submission."""
    cluster = proxied.cluster
    request = cluster.request(tmp_path, "sshd", visibility_window_s=8)
    process = cluster.start(submission_script(request))
    claim = tmp_path / ".jobs" / "sshd" / "1" / "claim.1"
    while not claim.exists():
        assert process.poll() is None
        time.sleep(0.002)
    cluster.control("kill", "sshd")
    process.communicate()
    cluster.control("start", "sshd")
    outcome = cluster.submit_patiently(replace(request, claim_token="second"))
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}
    assert verdict_of(cluster, watch_for(request, outcome.job_id)).outcome is Outcome.FINISHED


def test_open_sessions_continue_after_the_listener_died(proxied: ProxiedSite, tmp_path: Path) -> None:
    cluster = proxied.cluster
    request = cluster.request(tmp_path, "listener")
    process = cluster.start("sleep 6\n" + submission_script(request))
    listener = cluster.daemon("sshd")
    deadline = deadline_in(20)
    while "sleep" not in names_below(listener):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    listener.kill()
    out, _ = process.communicate(timeout=patient(60))
    cluster.control("start", "sshd")
    assert "status submitted" in out
    again = cluster.submit(replace(request, claim_token="second"))
    assert again.status == "recorded"
    assert cluster.jobs_named(request.attempt.job_name) == {again.job_id}


def test_slurmd_returns_before_slurm_marks_the_node_down(cluster: SlurmCluster, tmp_path: Path) -> None:
    request = cluster.request(
        tmp_path, "slurmd", f"am_run {until(tmp_path / 'go')}", sbatch_options=("--nodelist=n2",)
    )
    outcome = cluster.submit(request)
    watch = watch_for(request, outcome.job_id)
    wait_for(cluster, watch, is_running)
    cluster.control("kill", "slurmd:n2")
    assert not observe(cluster, watch).queue.state.ended
    cluster.control("start", "slurmd:n2")
    (tmp_path / "go").touch()
    verdict = verdict_of(cluster, watch, timeout=90)
    assert (verdict.outcome, verdict.node_list) == (Outcome.FINISHED, "n2")
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


@contextmanager
def unsaved_state(cluster: SlurmCluster) -> Iterator[None]:
    """Kill the controller after the block; its saved state becomes that before the block, whenever it has saved it."""
    state = cluster.place / "state" / "job_state"
    before = {file: file.read_bytes() for file in (state, state.with_suffix(".old")) if file.exists()}
    yield
    cluster.control("kill", "slurmctld")
    for file in (state, state.with_suffix(".old")):
        if file in before:
            file.write_bytes(before[file])
        else:
            file.unlink(missing_ok=True)


@pytest.mark.parametrize("options", [(), ("--begin=now+1hour",)], ids=["starts_at_once", "waits"])
def test_controller_dies_right_after_it_accepted_the_job(
    cluster: SlurmCluster, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """It had not saved its state and forgets the job, which counts as lost or as ended by the node."""
    name = f"forgotten{len(options)}"
    request = cluster.request(tmp_path, name, "am_run sleep 5", sbatch_options=options)
    with unsaved_state(cluster):
        first = cluster.submit(request)
    cluster.control("start", "slurmctld")
    watch, absence = watch_for(request, first.job_id), MissingJob(first.job_id, window_s=10)
    deadline = deadline_in(120)
    while True:
        observation = observe(cluster, watch)
        verdict = absence.weigh(judge(observation, COMMAND), observation)
        if verdict.outcome.is_verdict:
            break
        assert time.monotonic() < deadline, verdict
        time.sleep(0.5)
    if options:
        assert verdict.outcome is Outcome.RETRYABLE
        assert "Slurm has forgotten it" in verdict.reason
    for number in (2, 3):
        again = cluster.request(tmp_path, name, number=number)
        following = cluster.submit_patiently(again)
        verdict = verdict_of(cluster, watch_for(again, following.job_id))
        assert cluster.jobs_named(again.attempt.job_name) == {following.job_id}
        if verdict.outcome is not Outcome.RETRYABLE:
            break
        # it got the id of the forgotten job, and Slurm took the end of that job for its own
        assert "did not launch it" in verdict.reason or "could not launch it" in verdict.reason
        assert following.job_id == first.job_id
    assert verdict.outcome is Outcome.FINISHED


def test_controller_dies_before_it_saved_that_the_job_ran(cluster: SlurmCluster, tmp_path: Path) -> None:
    """It starts the job again with the same id; the record of the first end is damaged in between."""
    request = cluster.request(
        tmp_path, "relaunched", f"echo ran >>'{tmp_path}/times'", sbatch_options=("--begin=now+1hour",)
    )
    outcome = cluster.submit(request)
    state, pending = cluster.place / "state" / "job_state", tmp_path / "job_state"
    while not state.exists() or request.attempt.job_name.encode() not in state.read_bytes():
        time.sleep(0.1)
    shutil.copy(state, pending)
    start_now(cluster, outcome.job_id)
    watch = watch_for(request, outcome.job_id)
    verdict_of(cluster, watch)
    cluster.control("kill", "slurmctld")
    shutil.copy(pending, state)
    record = Path(request.attempt.directory) / "exit.json"
    record.write_bytes(b"")
    cluster.control("start", "slurmctld")
    start_now(cluster, outcome.job_id)
    log = tmp_path / "logs" / "relaunched-1.out"
    deadline = deadline_in(60)
    while "has already succeeded" not in log.read_text():
        assert time.monotonic() < deadline, cluster.slurm("squeue", "-t", "all")
        time.sleep(0.3)
    assert verdict_of(cluster, watch).outcome is Outcome.FINISHED
    assert (tmp_path / "times").read_text() == "ran\n"
    assert ExitRecord.from_json(json.loads(record.read_text())).exit_code == 0


def test_accounting_dies_while_the_job_ends(cluster: SlurmCluster, tmp_path: Path) -> None:
    """slurmctld keeps the records for slurmdbd; the verdict does not wait for accounting."""
    request = cluster.request(tmp_path, "accounting", f"am_run {until(tmp_path / 'go')}; exit 4")
    outcome = cluster.submit(request)
    watch = watch_for(request, outcome.job_id)
    wait_for(cluster, watch, is_running)
    cluster.control("kill", "slurmdbd")
    (tmp_path / "go").touch()
    try:
        verdict = verdict_of(cluster, watch)
    finally:
        cluster.control("start", "slurmdbd")
    assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, 4)
    deadline = deadline_in(60)
    while not observe(cluster, watch).accounting_ok:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert verdict_of(cluster, watch).exit_code == 4
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


def test_login_node_unreachable_for_longer_than_a_task_retries(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a maintenance: the task is deferred, and submits the job once when the login node is available again."""
    for name, value in environment(tmp_path, cluster).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("airflow_megatron.supervision.attempts.TROUBLE_WINDOW_S", 0)
    job = DrivenJob(AWAY, "away.only.work")
    cluster.control("kill", "sshd")
    output = ""
    with ThreadPoolExecutor(1) as worker:
        run = worker.submit(job.run)
        try:
            while "waiting until the login node answers" not in output:
                assert not run.done(), run.result()
                output += capsys.readouterr().out
                time.sleep(0.2)
        finally:
            cluster.control("start", "sshd")
        assert run.result(timeout=patient(90))["outcome"] == "finished"
    assert len(cluster.jobs_named(attempt_of(job.job, 1).job_name)) == 1
