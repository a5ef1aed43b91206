"""The run directory has no space left: before, during and after a submission, and while the job ends."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import fill
from patience import wait_until
from watched_jobs import until, verdict_of, wait_for, watch_for

from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.submission.single_job import parse_submission, submission_script
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import (
    RemoteWriteError,
    parse_written,
    write_verdict_script,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome

if TYPE_CHECKING:
    from proxied_site import ProxiedSite

pytestmark = pytest.mark.integration


def test_before_the_submission(proxied: ProxiedSite) -> None:
    cluster = proxied.cluster
    request = cluster.request(proxied.runs / "r", "full")
    fill(proxied.runs / "filler")
    outcome = cluster.submit(request)
    assert outcome.job_id is None
    assert "No space left on device" in outcome.message or "free space" in outcome.message
    assert cluster.jobs_named(request.attempt.job_name) == set()
    (proxied.runs / "filler").unlink()
    outcome = cluster.submit(replace(request, claim_token="second"))
    assert outcome.status == "submitted"
    assert verdict_of(cluster, watch_for(request, outcome.job_id)).outcome is Outcome.FINISHED
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}


def test_between_submission_and_record(proxied: ProxiedSite, tmp_path: Path) -> None:
    """sbatch accepts the job, but neither its output nor the id can be written."""
    cluster = proxied.cluster
    for name in ("squeue", "sacct", "scancel"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    filler = proxied.runs / "filler"
    (tmp_path / "sbatch").write_text(
        f"#!/bin/sh\ncat >{tmp_path}/script\ncat /dev/zero >{filler} 2>/dev/null\n"
        f'exec {shutil.which("sbatch")} "$@" <{tmp_path}/script\n'
    )
    (tmp_path / "sbatch").chmod(0o755)
    request = cluster.request(proxied.runs / "r", "unrecorded", sbatch_options=("--begin=now+1hour",))
    script = submission_script(request, SlurmCommands(slurm_bin=str(tmp_path)))
    outcome = parse_submission(cluster.run(script))
    assert outcome.job_id is not None, outcome
    assert "could not be recorded" in " ".join(outcome.warnings)
    filler.unlink()
    again = cluster.submit(replace(request, claim_token="second"))
    assert (again.status, again.job_id) == ("adopted", outcome.job_id)
    assert cluster.submit(replace(request, claim_token="third")).status == "recorded"
    assert cluster.jobs_named(request.attempt.job_name) == {outcome.job_id}
    cluster.slurm("scontrol", "update", f"JobId={outcome.job_id}", "StartTime=now")
    assert verdict_of(cluster, watch_for(request, outcome.job_id)).outcome is Outcome.FINISHED


def test_when_the_job_starts(proxied: ProxiedSite) -> None:
    """A job that cannot write its id to the attempt does not run, because a second job would not be detected."""
    cluster = proxied.cluster
    run_dir = proxied.runs / "r"
    options = ("--begin=now+1hour",)
    request = cluster.request(run_dir, "start", f"touch {run_dir}/ran", sbatch_options=options)
    outcome = cluster.submit(request)
    fill(proxied.runs / "filler")
    cluster.slurm("scontrol", "update", f"JobId={outcome.job_id}", "StartTime=now")
    verdict = verdict_of(cluster, watch_for(request, outcome.job_id), timeout=90)
    (proxied.runs / "filler").unlink()
    assert verdict.outcome is Outcome.RETRYABLE
    assert not (run_dir / "ran").exists()


@pytest.mark.parametrize("status", [0, 3])
def test_while_the_job_ends(proxied: ProxiedSite, tmp_path: Path, status: int) -> None:
    """``exit.json`` cannot be written: the verdict uses accounting, waits for space, and a message reports this."""
    cluster = proxied.cluster
    body = f"am_run {until(tmp_path / 'go')}; exit {status}"
    request = cluster.request(proxied.runs / "r", f"end{status}", body)
    outcome = cluster.submit(request)
    watch = watch_for(request, outcome.job_id)
    wait_for(cluster, watch, lambda verdict: verdict.state is JobState.RUNNING)
    wait_until((Path(request.attempt.directory) / "run" / "job_id").exists, 60, "the job's record", 0.05)
    fill(proxied.runs / "filler")
    (tmp_path / "go").touch()
    verdict = verdict_of(cluster, watch)
    assert verdict.outcome is (Outcome.FAILED if status else Outcome.FINISHED)
    assert verdict.exit_code == status
    script = write_verdict_script(request.attempt.stage_dir, RecordedVerdict.of(verdict, 1))
    with pytest.raises(RemoteWriteError, match="No space left on device"):
        parse_written(cluster.run(script))
    assert not (Path(request.attempt.stage_dir) / "verdict.json").exists()
    (proxied.runs / "filler").unlink()
    parse_written(cluster.run(script))
