"""One submission per attempt, even if the connection, the daemons or the disk fail during it."""

from __future__ import annotations

import concurrent.futures
import os
import random
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest
from patience import deadline_in, patient, wait_until

from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    SubmissionRequest,
    parse_submission,
    submission_script,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration


@pytest.fixture
def sbatch_that(tmp_path: Path) -> Callable[[str], SlurmCommands]:
    """Return a function that replaces sbatch with a script, in which ``$sbatch`` is the real program."""

    def make(script: str) -> SlurmCommands:
        folder = tmp_path / "slurm_bin"
        folder.mkdir()
        for name in ("squeue", "sacct", "scancel"):
            (folder / name).symlink_to(str(shutil.which(name)))
        path = folder / "sbatch"
        path.write_text(f"#!/bin/sh\nsbatch={shutil.which('sbatch')}\n{script}\n")
        path.chmod(0o755)
        return SlurmCommands(slurm_bin=str(folder))

    return make


def call_submission(
    cluster: SlurmCluster, request: SubmissionRequest, commands: SlurmCommands
) -> SubmissionOutcome:
    return parse_submission(cluster.run(submission_script(request, commands)))


def daemons(cluster: SlurmCluster, name: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == name and str(cluster.place) in " ".join(process.info["cmdline"] or ())
    ]


@pytest.mark.parametrize("seed", range(4))
def test_server_side_of_the_connection_killed(cluster: SlurmCluster, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    request = cluster.request(tmp_path, f"sshd{seed}", visibility_window_s=8)
    (server,) = daemons(cluster, "sshd")
    before = {process.pid for process in server.children()}
    process = cluster.start(submission_script(request))
    deadline = deadline_in(30)
    while not (sessions := [one for one in server.children() if one.pid not in before]):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(chance.uniform(0.05, 0.3))
    for one in sessions:
        with suppress(psutil.NoSuchProcess):  # on a fast machine the script may have returned
            one.kill()
    process.communicate()
    outcome = cluster.submit_patiently(replace(request, claim_token="last"))
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


def test_sbatch_answers_after_the_caller_gave_up(
    cluster: SlurmCluster, tmp_path: Path, sbatch_that: Callable[[str], SlurmCommands]
) -> None:
    commands = sbatch_that('touch "$0.called"; until [ -e "$0.go" ]; do sleep 0.1; done; exec "$sbatch" "$@"')
    request = cluster.request(tmp_path, "patience", busy_wait_s=0)
    process = cluster.start(submission_script(request, commands))
    wait_until((tmp_path / "slurm_bin" / "sbatch.called").exists, 60, "the call of sbatch")
    process.kill()
    process.communicate()
    assert call_submission(cluster, request, commands).status == "pending"
    (tmp_path / "slurm_bin" / "sbatch.go").touch()
    deadline = deadline_in(30)
    while (outcome := call_submission(cluster, request, commands)).job_id is None:
        assert time.monotonic() < deadline, outcome
        time.sleep(0.3)
    assert outcome.status == "recorded"
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


def test_controller_restarts_under_submissions(cluster: SlurmCluster, tmp_path: Path) -> None:
    requests = [cluster.request(tmp_path, f"restart{number}", visibility_window_s=20) for number in range(8)]

    def submit(number: int) -> str:
        time.sleep(0.4 * number)  # before, while and after it is away
        return str(cluster.submit_patiently(requests[number], timeout=120).job_id)

    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        submitted = [pool.submit(submit, number) for number in range(len(requests))]
        time.sleep(0.8)
        # with SIGTERM it saves its state first; after SIGKILL it may forget a job that it has just accepted
        (controller,) = daemons(cluster, "slurmctld")
        controller.terminate()
        controller.wait(patient(30))
        cluster.control("start", "slurmctld")
        ids = [one.result() for one in submitted]
    found = [cluster.jobs_named(request.attempt.job_name) for request in requests]
    assert found == [{job_id} for job_id in ids]


def test_without_accounting_a_job_is_adopted_and_an_unknown_outcome_waits(
    cluster: SlurmCluster, tmp_path: Path, sbatch_that: Callable[[str], SlurmCommands]
) -> None:
    dies = sbatch_that('[ -e "$0.submits" ] && "$sbatch" "$@" >/dev/null; kill -9 $$')
    submits = tmp_path / "slurm_bin" / "sbatch.submits"
    accepted, lost = (
        cluster.request(tmp_path, name, "am_run sleep 1", visibility_window_s=2)
        for name in ("taken", "doubted")
    )
    cluster.control("kill", "slurmdbd")
    try:
        submits.touch()
        assert call_submission(cluster, accepted, dies).status == "adopted"
        submits.unlink()
        assert call_submission(cluster, lost, dies).status == "pending"
        time.sleep(2)
        doubt = cluster.submit(lost)
        assert doubt.status == "pending"
        assert "sacct:" in doubt.message
    finally:
        cluster.control("start", "slurmdbd")
    outcome = cluster.submit_patiently(lost)
    assert outcome.status == "submitted"
    assert cluster.jobs_named(lost.attempt.job_name) == {outcome.job_id}
    # accounting gets the record when slurmctld is connected to slurmdbd again
    name = accepted.attempt.job_name
    wait_until(
        lambda: cluster.slurm("sacct", "-X", "-n", "--name", name), 60, "the adopted job in accounting"
    )
    assert len(cluster.jobs_named(name)) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, which only root can create."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")
@pytest.mark.parametrize("when", ["before", "while sbatch runs"])
def test_full_disk(
    cluster: SlurmCluster,
    tmp_path: Path,
    small_disk: Path,
    sbatch_that: Callable[[str], SlurmCommands],
    when: str,
) -> None:
    """Nothing is submitted on a full disk; the id of a submitted job is found although it could not be written."""
    filler = small_disk / "filler"
    fill = f"cat /dev/zero >{filler} 2>/dev/null"
    request = cluster.request(small_disk / "run", f"full_{when.split()[0]}")
    if when == "before":
        subprocess.run(["sh", "-c", fill], check=False)
        outcome = cluster.submit(request)
        assert (outcome.status, outcome.waits_for) == ("deferred", "recovery"), outcome
        assert "No space left on device" in outcome.message
        assert cluster.jobs_named(request.attempt.job_name) == set()
    else:
        outcome = call_submission(cluster, request, sbatch_that(f'{fill}; exec "$sbatch" "$@"'))
        assert outcome.status == "adopted"
        assert any("could not be recorded" in warning for warning in outcome.warnings)
    filler.unlink()
    again = cluster.submit_patiently(replace(request, claim_token="again"))
    assert cluster.jobs_named(request.attempt.job_name) == {again.job_id}
    assert outcome.job_id in (None, again.job_id)
