"""Stopping a whole sweep in one action: no job continues, and none is submitted again."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from patience import patient, wait_until

if TYPE_CHECKING:
    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration


def started(site: SweepSite, airflow: SiteAirflow, sweep: str) -> str:
    """Start a sweep; return its run when the jobs of both points run and are watched."""
    airflow.wait_for_dag(f"{sweep}.point")
    airflow.wait_for_dag(sweep)
    run_id = airflow.trigger(sweep)
    for point in ("a", "b"):
        wait_until(lambda name=point: site.is_running(f"{sweep}.{name}.work.a1"), 240, f"{point} to run")
        wait_until(
            lambda name=point: airflow.task_states(f"{sweep}.point", name).get("work.watch") == "deferred",
            120,
            f"{point} to be watched",
        )
    return run_id


def test_marking_the_sweeps_run_failed_stops_its_points(site: SweepSite, airflow: SiteAirflow) -> None:
    run_id = started(site, airflow, "marked")
    wait_until(lambda: airflow.task_states("marked", run_id).get("wait") == "deferred", 120, "wait")
    airflow.mark_run("marked", run_id, "failed")
    assert airflow.ended("marked", run_id) == "failed"
    for point in ("a", "b"):
        assert airflow.ended("marked.point", point) == "failed"
    site.expect_states("marked.", {f"marked.{point}.work.a1": ["CANCELLED"] for point in ("a", "b")})
    wait_until(lambda: not site.queued("marked."), 60, "no job to be left in the queue")


def test_cancel_stops_one_point_then_the_sweep(site: SweepSite, airflow: SiteAirflow) -> None:
    run_id = started(site, airflow, "held")
    command = [sys.executable, "-m", "airflow_megatron.cli.app", "cancel", "held"]
    environment = airflow.environment()
    one = subprocess.run(
        [*command, "--select", "a"], env=environment, capture_output=True, text=True, check=False
    )
    assert one.returncode == 0, one.stderr
    assert "stopped held.point a" in one.stdout
    assert airflow.ended("held.point", "a") == "failed"
    assert site.is_running("held.b.work.a1")
    assert airflow.run_state("held", run_id) == "running"
    all_of_it = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert all_of_it.returncode == 0, all_of_it.stderr
    assert f"stopped held {run_id}" in all_of_it.stdout
    assert airflow.ended("held", run_id) == "failed"
    assert airflow.ended("held.point", "b") == "failed"
    # although restart.cancelled allows further attempts
    site.expect_states("held.", {f"held.{point}.work.a1": ["CANCELLED"] for point in ("a", "b")})
    wait_until(lambda: not site.queued("held."), 60, "no job to be left in the queue")
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.stdout.splitlines()[-1] == "0 runs stopped, 0 jobs cancelled"


@pytest.mark.long
def test_jobs_continue_after_sigterm_to_dags_test(site: SweepSite) -> None:
    attempts = [f"terminated.{point}.work.a1" for point in ("a", "b")]
    with site.dags_test("terminated") as process:
        for attempt in attempts:
            wait_until(lambda name=attempt: site.is_running(name), 240, attempt)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=patient(60))
    assert process.returncode == 143, output[-4000:]
    assert "jobs in Slurm continue" in output
    assert all(site.is_running(attempt) for attempt in attempts)
    for point in ("a", "b"):
        (site.runs / "terminated" / point / "work" / "go").touch()
    status, output = site.run_dags_test("terminated", timeout=400)
    assert status == 0, output[-4000:]
    site.expect_states("terminated.", {attempt: ["COMPLETED"] for attempt in attempts})
