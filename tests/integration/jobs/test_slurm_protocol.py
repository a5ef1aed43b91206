"""Submission, polling and verdicts on a real Slurm over real SSH, with the faults of real sites."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from patience import deadline_in, patient, wait_until
from slurm_cluster import SshTransport
from watched_jobs import COMMAND, observe, until, verdict_among, verdict_of, wait_for, watch_for

from airflow_megatron.slurm.polling.poller import Poller
from airflow_megatron.slurm.states.exit_codes import DUPLICATE_EXIT_CODE
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.submission.cancellation import cancel_script, parse_cancel
from airflow_megatron.slurm.submission.single_job import submission_script
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict, judge

pytestmark = pytest.mark.integration


def running(verdict: Verdict) -> bool:
    return verdict.state is JobState.RUNNING


def test_twenty_callers_one_job(cluster, tmp_path):
    requests = [cluster.request(tmp_path, "twenty") for _ in range(20)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(cluster.submit_patiently, requests))
    (job_id,) = {outcome.job_id for outcome in outcomes}
    assert cluster.jobs_named(requests[0].attempt.job_name) == {job_id}
    assert [outcome.status for outcome in outcomes].count("submitted") <= 1


@pytest.mark.parametrize("seed", range(10))
def test_ssh_killed_at_any_instant(cluster, tmp_path, seed):
    chance = random.Random(seed)
    request = cluster.request(tmp_path, f"cut{seed}", visibility_window_s=8)
    for _ in range(3):
        process = cluster.start(submission_script(request))
        time.sleep(chance.uniform(0.05, 0.5))
        process.kill()
        process.communicate()
    outcome = cluster.submit_patiently(replace(request, claim_token="last"))
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


@pytest.mark.parametrize("seed", range(10))
def test_remote_shell_killed_at_any_instant(cluster, tmp_path, seed):
    chance = random.Random(seed)
    request = cluster.request(tmp_path, f"kill{seed}", visibility_window_s=8)
    owner = Path(request.attempt.directory) / "claim.1" / "owner"
    process = cluster.start(submission_script(request))
    while not owner.exists():
        assert process.poll() is None
        time.sleep(0.002)
    time.sleep(chance.uniform(0.0, 0.03))
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(owner.read_text().split()[1]), signal.SIGKILL)
    process.communicate()
    outcome = cluster.submit_patiently(replace(request, claim_token="last"))
    assert outcome.status in {"submitted", "adopted", "recorded"}
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}
    assert verdict_of(cluster, watch_for(request, outcome.job_id)).outcome is Outcome.FINISHED


def test_life_of_a_job(cluster, tmp_path):
    request = cluster.request(tmp_path, "life", f"echo working; am_run {until(tmp_path / 'go')}; exit 3")
    outcome = cluster.submit(request)
    watch = replace(watch_for(request, outcome.job_id), log_file=str(tmp_path / "logs" / "life-1.out"))
    wait_until(lambda: observe(cluster, watch).log_chunk, 60, "the log of the job that runs")
    observation = observe(cluster, watch)
    assert running(judge(observation, COMMAND))
    assert observation.log_chunk == b"working\n"
    (tmp_path / "go").touch()
    verdict = verdict_of(cluster, watch)
    assert (verdict.outcome, verdict.state, verdict.exit_code) == (Outcome.FAILED, JobState.FAILED, 3)
    assert verdict.node_list in {"n1", "n2", "n3", "n4"}
    state = parse_stage_states(
        [request.attempt.stage_dir], cluster.run(stage_state_script([request.attempt.stage_dir]))
    )[request.attempt.stage_dir]
    assert state.latest is not None
    assert (state.latest.job_id, state.latest.owner_job_id) == (outcome.job_id, outcome.job_id)
    assert state.latest.exit is not None
    assert state.latest.exit.exit_code == 3


def test_sbatch_refuses_and_the_next_try_works(cluster, tmp_path):
    request = cluster.request(tmp_path, "refused", sbatch_options=("--partition=nowhere",))
    outcome = cluster.submit(request)
    assert outcome.status == "refused"
    assert "nowhere" in outcome.message or "partition" in outcome.message
    assert cluster.submit(replace(request, sbatch_options=(), claim_token="again")).status == "submitted"


def test_second_job_of_an_attempt_does_not_run(cluster, tmp_path):
    request = cluster.request(tmp_path, "twin", f"echo ran; am_run {until(tmp_path / 'go')}")
    first = cluster.submit(request)
    wait_until((Path(request.attempt.directory) / "run" / "job_id").exists, 60, "the start of the first job")
    script = Path(request.attempt.directory) / "job.sbatch"
    second = cluster.slurm("sbatch", "--parsable", "--job-name", request.attempt.job_name, str(script))
    verdict = verdict_of(cluster, watch_for(request, second))
    assert verdict.outcome is Outcome.DUPLICATE
    assert verdict.job_id == first.job_id
    (tmp_path / "go").touch()
    accounted = ("sacct", "-X", "-n", "-P", "-j", second, "-o", "ExitCode")
    wait_until(
        lambda: cluster.slurm(*accounted) == f"{DUPLICATE_EXIT_CODE}:0", 60, "the exit code in accounting"
    )
    assert verdict_of(cluster, watch_for(request, first.job_id)).outcome is Outcome.FINISHED
    assert (tmp_path / "logs" / "twin-1.out").read_text().count("ran") == 1


def test_requeued_job_is_one_attempt(cluster, tmp_path):
    request = cluster.request(
        tmp_path,
        "requeue",
        'echo began; am_run sleep "$((600 - 599 * ${SLURM_RESTART_COUNT:-0}))"',
        sbatch_options=("--requeue",),
    )
    outcome = cluster.submit(request)
    watch = watch_for(request, outcome.job_id)
    wait_for(cluster, watch, running)
    # Slurm reports a job as running before its script has started, and an interrupted launch can fail
    log = tmp_path / "logs" / "requeue-1.out"
    wait_until(lambda: log.exists() and "began" in log.read_text(), 60, "the start of the script")
    cluster.slurm("scontrol", "requeue", outcome.job_id)
    assert judge(observe(cluster, watch), COMMAND).outcome in {Outcome.ACTIVE, Outcome.UNKNOWN}
    wait_for(cluster, watch, lambda verdict: verdict.state is JobState.PENDING)
    cluster.start_again(outcome.job_id)
    verdict = verdict_of(cluster, watch)
    assert verdict.outcome is Outcome.FINISHED
    assert observe(cluster, watch).exit.restart_count == 1


def test_only_our_own_job_is_cancelled(cluster, tmp_path):
    names = ("mine", "other")
    mine, other = (cluster.request(tmp_path, name, "echo began; am_run sleep 280") for name in names)
    ids = [cluster.submit(one).job_id for one in (mine, other)]
    # Slurm reports a job as running before its script has started, and a script that has not cannot record its end
    logs = [tmp_path / "logs" / f"{name}-1.out" for name in names]
    wait_until(lambda: all(log.exists() and "began" in log.read_text() for log in logs), 60, "both scripts")
    jobs = [(ids[0], mine.attempt.job_name), (ids[1], "not.its.name")]
    outcome = parse_cancel(jobs, cluster.run(cancel_script(jobs)))
    assert (outcome.cancelled, outcome.absent) == ((ids[0],), (ids[1],))
    verdict = verdict_of(cluster, watch_for(mine, ids[0]))
    assert verdict.outcome is Outcome.CANCELLED
    wait_until(lambda: observe(cluster, watch_for(mine, ids[0])).exit, 60, "the end of the script")
    assert observe(cluster, watch_for(mine, ids[0])).exit.signal == "TERM"
    assert judge(observe(cluster, watch_for(other, ids[1])), COMMAND).outcome is Outcome.ACTIVE
    jobs = [(ids[1], other.attempt.job_name)]
    parse_cancel(jobs, cluster.run(cancel_script(jobs)))


def test_a_renamed_job_is_followed_and_cancelled(cluster, tmp_path):
    goes = f"am_run {until(tmp_path / 'go')}; exit 3"
    followed = cluster.request(tmp_path, "followed", goes)
    stopped = cluster.request(tmp_path, "stopped", "am_run sleep 280")
    ids = [cluster.submit(one).job_id for one in (followed, stopped)]
    for job_id in ids:
        cluster.slurm("scontrol", "update", f"JobId={job_id}", "JobName=x")
    watch = watch_for(followed, ids[0])
    wait_for(cluster, watch, running)
    (tmp_path / "go").touch()
    verdict = verdict_of(cluster, watch)
    assert (verdict.outcome, verdict.state, verdict.exit_code) == (Outcome.FAILED, JobState.FAILED, 3)
    jobs = [(ids[1], stopped.attempt.job_name)]
    assert parse_cancel(jobs, cluster.run(cancel_script(jobs))).cancelled == (ids[1],)
    assert verdict_of(cluster, watch_for(stopped, ids[1])).outcome is Outcome.CANCELLED


def test_lost_node(cluster, tmp_path):
    request = cluster.request(
        tmp_path, "lost", "am_run sleep 280", sbatch_options=("--nodelist=n4", "--no-requeue")
    )
    outcome = cluster.submit(request)
    watch = watch_for(request, outcome.job_id)
    wait_for(cluster, watch, running)
    cluster.control("kill", "slurmd:n4")
    try:
        verdict = verdict_of(cluster, watch, timeout=90)
    finally:
        cluster.control("start", "slurmd:n4")
        with contextlib.suppress(Exception):
            cluster.slurm("scontrol", "update", "nodename=n4", "state=resume")
    assert verdict.outcome is Outcome.RETRYABLE
    assert verdict.state is JobState.NODE_FAIL
    assert verdict.failed_nodes == ("n4",)


def test_controller_unreachable(cluster, tmp_path):
    before = cluster.request(tmp_path, "before", f"am_run {until(tmp_path / 'go')}")
    job_id = cluster.submit(before).job_id
    watch = watch_for(before, job_id)
    wait_for(cluster, watch, running)
    during = cluster.request(tmp_path, "during")
    cluster.control("kill", "slurmctld")
    try:
        observation = observe(cluster, watch)
        assert not observation.queue_ok
        assert judge(observation, COMMAND).outcome is Outcome.UNKNOWN
        outcome = cluster.submit(during)
        assert outcome.status in {"deferred", "pending"}
    finally:
        (tmp_path / "go").touch()
        cluster.control("start", "slurmctld")
    assert cluster.submit_patiently(during).status == "submitted"
    # The job ended by itself and recorded it, whether or not the controller had saved that it was running.
    assert verdict_of(cluster, watch).outcome is Outcome.FINISHED


def test_controller_that_answers_too_late(cluster, tmp_path):
    """sbatch times out, but the controller accepts the job."""
    request = cluster.request(tmp_path, "late")
    controller = cluster.daemon("slurmctld")
    controller.suspend()
    try:
        process = cluster.start(submission_script(request))
        marker = Path(request.attempt.directory) / "claim.1" / "sbatch.err"
        deadline = deadline_in(90)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
            if marker.exists() and b"timed out" in marker.read_bytes():
                break
    finally:
        controller.resume()
    process.communicate(timeout=patient(120))
    assert b"timed out" in marker.read_bytes()
    outcome = cluster.submit_patiently(replace(request, claim_token="last"), timeout=330)
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


def test_accounting_unreachable(cluster, tmp_path):
    request = cluster.request(tmp_path, "nodbd", "exit 3")
    cluster.control("kill", "slurmdbd")
    try:
        outcome = cluster.submit(request)
        assert outcome.status == "submitted"
        watch = watch_for(request, outcome.job_id)
        verdict = verdict_of(cluster, watch)
        assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, 3)
        assert not observe(cluster, watch).accounting_ok
    finally:
        cluster.control("start", "slurmdbd")


async def test_poller_follows_many_jobs_with_one_command_a_tick(cluster, tmp_path):
    requests = [cluster.request(tmp_path, f"many{number}", f"exit {number % 2}") for number in range(24)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ids = [outcome.job_id for outcome in pool.map(cluster.submit_patiently, requests)]

    async def open_transport() -> SshTransport:
        return SshTransport(cluster)

    poller = Poller.shared("cluster", open_transport, interval=0.5)

    async def follow(request, job_id: str) -> Verdict:
        async with poller.subscribe(watch_for(request, job_id)) as observations:
            return await verdict_among(observations, [])

    verdicts = await asyncio.wait_for(
        asyncio.gather(*(follow(one, job_id) for one, job_id in zip(requests, ids, strict=True))),
        patient(120),
    )
    assert [verdict.outcome for verdict in verdicts] == [Outcome.FINISHED, Outcome.FAILED] * 12
    assert poller.stats.commands == poller.stats.ticks
    assert poller.stats.reconnects == 0
