"""Airflow's daemons and tasks are killed while jobs run, together with other faults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from airflow_storm import work_through
from patience import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from proxied_site import ProxiedSite

pytestmark = pytest.mark.integration

AWAY = {"triggerer": ("triggerer",), "scheduler": ("scheduler",), "everything": ("triggerer", "scheduler")}


def work_dir(site: ProxiedSite, point: str) -> Path:
    return site.runs / "killed" / point / "work"


def assert_ran_once(site: ProxiedSite, point: str, run_id: str) -> None:
    assert site.airflow.ended("killed.point", run_id) == "success"
    site.expect_states(f"killed.{point}.", {f"killed.{point}.work.a1": ["COMPLETED"]})
    assert (work_dir(site, point) / "times").read_text() == "begun\n"
    assert site.verdict(work_dir(site, point), "work")["outcome"] == "finished"


@pytest.mark.parametrize(
    "point", [pytest.param(name, marks=pytest.mark.long if name == "triggerer" else ()) for name in AWAY]
)
def test_job_ends_while_airflow_is_stopped(proxied_airflow: ProxiedSite, point: str) -> None:
    """No process watches when the job ends; after a restart Airflow detects the end and submits nothing."""
    site, airflow = proxied_airflow, proxied_airflow.airflow
    airflow.wait_for_dag("killed.point")
    run_id = airflow.trigger("killed.point", {"point": point})
    wait_until(lambda: site.is_running(f"killed.{point}.work.a1"), 90, "the job to run")
    wait_until(
        lambda: airflow.task_states("killed.point", run_id)["work.watch"] == "deferred", 60, "the wait"
    )
    # killed alone, a scheduler leaves its executor's processes running; killed with its children, it does not
    killed = {name: airflow.kill_daemon(name, with_children=point != "scheduler") for name in AWAY[point]}
    (work_dir(site, point) / "go").touch()
    wait_until(lambda: not site.queued(f"killed.{point}."), 30, "the job's end")
    for name, environment in killed.items():
        airflow.start_daemon(name, environment)
    assert_ran_once(site, point, run_id)


def test_scheduler_dies_with_a_task_that_submits(proxied_airflow: ProxiedSite) -> None:
    site, airflow = proxied_airflow, proxied_airflow.airflow
    airflow.wait_for_dag("killed.point")
    site.proxy.delay(0.5)
    run_id = airflow.trigger("killed.point", {"point": "submission"})
    wait_until(lambda: site.proxy.connections > 0, 90, "the task to reach the login node")
    environment = airflow.kill_daemon("scheduler", with_children=True)
    site.proxy.pass_on()
    airflow.start_daemon("scheduler", environment)
    work_dir(site, "submission").mkdir(parents=True, exist_ok=True)
    (work_dir(site, "submission") / "go").touch()
    assert_ran_once(site, "submission", run_id)


@pytest.mark.long
def test_points_under_random_faults(proxied_airflow: ProxiedSite) -> None:
    seed = int(os.environ.get("FAULTS_SEED", 5))
    wrong, message = work_through(proxied_airflow, seed, faults=60, per_second=0.7)
    assert not wrong, "\n".join([f"repeat with FAULTS_SEED={seed}", *wrong, message])
