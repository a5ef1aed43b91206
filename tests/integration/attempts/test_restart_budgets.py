"""Restarts of a job are counted on the cluster, so a killed worker does not reset the count."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import driven_job
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from driven_job import DrivenJob, environment
from patience import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

SPEC = """\
name: flaky
point: only
restart: {failed: 2, backoff: 0}
stages:
  work:
    kind: command
    command: [bash, -c, "echo x >> '{{ run_dir }}/times'; exit 3"]
"""

ENDLESS = """\
name: endless
point: only
stages:
  work:
    kind: command
    cancel: {file: stop}
    command: [sleep, "1500"]
"""


def test_a_killed_worker_does_not_renew_the_budget(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(tmp_path, cluster).items():
        monkeypatch.setenv(name, value)
    job = DrivenJob(SPEC, "flaky.only.work")
    handle = job.submit()
    work = tmp_path / "runs" / "flaky" / "only" / "work"
    with subprocess.Popen([sys.executable, driven_job.__file__], stdin=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        paused = SPEC.replace("backoff: 0", "backoff: 600")
        json.dump({"spec": paused, "name": "flaky.only.work", "handle": handle}, worker.stdin)
        worker.stdin.close()
        wait_until(lambda: (work / ".jobs/work/1/verdict.json").exists(), 90, "the first verdict", 0.05)
        assert worker.poll() is None
        worker.kill()
    assert not (work / ".jobs/work/2").exists()  # it was killed in the pause before the next attempt
    with pytest.raises(AirflowFailException, match="attempt 3 failed after 2 restarts"):
        job.watch(handle)
    names = [
        json.loads((work / f".jobs/work/{number}/job.json").read_text())["job_name"] for number in (1, 2, 3)
    ]
    assert [len(cluster.jobs_named(name)) for name in names] == [1, 1, 1]
    assert (work / "times").read_text() == "x\n" * 3
    assert not (work / ".jobs/work/4").exists()
    with pytest.raises(AirflowFailException, match="attempt 3 failed after 2 restarts"):
        job.watch(handle)  # a task that Airflow tries again after its job was given up
    assert not (work / ".jobs/work/4").exists()


def test_what_its_own_condition_cancelled_is_passed_over(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(tmp_path, cluster).items():
        monkeypatch.setenv(name, value)
    job = DrivenJob(ENDLESS, "endless.only.work")
    work = tmp_path / "runs" / "endless" / "only" / "work"
    handle = job.submit()
    (work / "stop").touch()
    with pytest.raises(AirflowSkipException, match="its cancel condition holds"):
        job.watch(handle)
    again = job.submit()
    assert (again["cancelled"], again["attempt"]) == (True, 1)
    with pytest.raises(AirflowSkipException, match="cancelled before, by its own condition"):
        job.watch(again)
    (record,) = (work / ".jobs" / "work").glob("*/job.json")
    name = json.loads(record.read_text())["job_name"]
    assert len(cluster.jobs_named(name)) == 1
    wait_until(lambda: not cluster.slurm("squeue", "-h", "-n", name), 60, "the job to be cancelled")
