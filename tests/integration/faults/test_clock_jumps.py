"""Clocks that jump or differ: that of the login node, and that of the watching machine (libfaketime)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from patience import deadline_in, patient
from shifted_clock import ShiftedClock, shifted_script
from watched_jobs import wait_for, watch_for

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.submission.single_job import (
    SubmissionOutcome,
    parse_submission,
    submission_script,
)
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, judge

if TYPE_CHECKING:
    from slurm_cluster import SlurmCluster

    from airflow_megatron.slurm.submission.single_job import SubmissionRequest

pytestmark = pytest.mark.integration

HOUR_S = 3600
JUMPS = pytest.mark.parametrize("jump", [HOUR_S, -HOUR_S], ids=["forward", "back"])
WINDOW_S = 8


@pytest.fixture
def late_sbatch(tmp_path: Path) -> SlurmCommands:
    """An sbatch that contacts the controller only when the file ``go`` exists beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "sacct", "scancel"):
        (folder / name).symlink_to(str(shutil.which(name)))
    (folder / "sbatch").write_text(
        f'#!/bin/sh\nuntil [ -e "$0.go" ]; do sleep 0.1; done\nexec {shutil.which("sbatch")} "$@"\n'
    )
    (folder / "sbatch").chmod(0o755)
    return SlurmCommands(slurm_bin=str(folder))


def begin_and_die(
    cluster: SlurmCluster, request: SubmissionRequest, commands: SlurmCommands, *, with_sbatch: bool
) -> None:
    """Start a submission whose shell dies while sbatch runs."""
    process = cluster.start(submission_script(request, commands))
    claim = Path(request.attempt.directory) / "claim.1"
    while not (claim / "sbatch.out").exists():
        assert process.poll() is None
        time.sleep(0.01)
    shell = psutil.Process(int((claim / "owner").read_text().split()[1]))
    children = shell.children(recursive=True)
    shell.kill()
    for child in children if with_sbatch else []:
        with suppress(psutil.NoSuchProcess):  # sbatch sleeps briefly
            child.kill()
    process.kill()
    process.communicate()


@JUMPS
def test_sbatch_outlives_its_shell(
    cluster: SlurmCluster, tmp_path: Path, late_sbatch: SlurmCommands, jump: int
) -> None:
    """A clock that jumps by an hour does not release the attempt, because sbatch still runs."""
    request = cluster.request(tmp_path, f"outlived{jump}", visibility_window_s=WINDOW_S)
    begin_and_die(cluster, request, late_sbatch, with_sbatch=False)
    outcome = call_submission(cluster, request, jump)
    assert outcome.status == "pending", outcome
    (tmp_path / "bin" / "sbatch.go").touch()
    deadline = deadline_in(30)
    while outcome.job_id is None:
        assert time.monotonic() < deadline, outcome
        time.sleep(0.5)
        outcome = call_submission(cluster, request, jump)
    assert outcome.status == "adopted"
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


@JUMPS
def test_sbatch_dies_with_its_shell(
    cluster: SlurmCluster, tmp_path: Path, late_sbatch: SlurmCommands, jump: int
) -> None:
    """Only elapsed time counts for the window."""
    request = cluster.request(tmp_path, f"died{jump}", visibility_window_s=WINDOW_S)
    began = time.monotonic()
    begin_and_die(cluster, request, late_sbatch, with_sbatch=True)
    while (outcome := call_submission(cluster, request, jump)).job_id is None:
        assert time.monotonic() < began + patient(60), outcome
        time.sleep(0.5)
    assert time.monotonic() - began >= WINDOW_S - 1
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


def call_submission(cluster: SlurmCluster, request: SubmissionRequest, jump: int) -> SubmissionOutcome:
    script = submission_script(replace(request, claim_token=f"asked-{os.urandom(4).hex()}"))
    return parse_submission(cluster.run(shifted_script(script, jump)))


@JUMPS
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "output_missing"])
def test_verdict(cluster: SlurmCluster, tmp_path: Path, jump: int, whole: bool) -> None:
    """The clocks of login node and controller differ by an hour; the job still counts as ended seconds ago."""
    request = cluster.request(tmp_path, f"verdict{jump}{whole}")
    watch = replace(watch_for(request, cluster.submit(request).job_id), check_files=(str(tmp_path / "made"),))
    if whole:
        (tmp_path / "made").touch()
    expectation = Expectation("command", required_files=watch.check_files)
    wait_for(cluster, watch, lambda verdict: verdict.state is not None and verdict.state.ended)
    deadline = deadline_in(30)
    while True:
        result = cluster.run(shifted_script(poll_script([watch]), jump))
        verdict = judge(parse_poll([watch], result)["x"], expectation)
        if verdict.outcome.is_verdict:
            break
        assert time.monotonic() < deadline, verdict
        time.sleep(0.5)
    assert verdict.outcome is (Outcome.FINISHED if whole else Outcome.FAILED)


PAUSE = """
import asyncio, sys, time
from airflow_megatron.triggers.pause import PauseTrigger

async def main():
    trigger = PauseTrigger(until=time.time() + 3)
    waits = asyncio.create_task(anext(trigger.wait()))
    await asyncio.sleep(0)
    print("begun", flush=True)
    await waits

asyncio.run(main())
"""


@JUMPS
def test_pause(tmp_path: Path, jump: int) -> None:
    """A clock that is set back does not prolong the pause before the next attempt."""
    clock = ShiftedClock(tmp_path / "clock")
    environment = {**os.environ, **clock.environment}
    argv = [sys.executable, "-c", PAUSE]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        clock.jump(jump)
        try:
            assert process.wait(patient(15)) == 0
        finally:
            process.kill()
