"""Runs that are stopped, cleared or started twice while their jobs run, and runs that wait for a full queue."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
from patience import patient, read_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

DAG = "stopping.point"


@contextmanager
def without_triggerer(airflow: SiteAirflow) -> Iterator[None]:
    """Suspend the triggerer, so that no trigger cancels jobs."""
    triggerers = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "triggerer" in " ".join(process.info["cmdline"] or ())
        and process.environ().get("AIRFLOW_HOME") == str(airflow.home)
    ]
    assert triggerers

    def suspended() -> bool:
        for process in triggerers:
            process.suspend()
        if is_free(airflow.database):
            return True
        for process in triggerers:
            process.resume()
        return False

    wait_until(suspended, 60, "the triggerer to be suspended outside a transaction")
    try:
        yield
    finally:
        for process in triggerers:
            process.resume()


def is_free(database: Path) -> bool:
    """Return whether no process holds a lock of an SQLite database for more than some seconds."""
    with closing(sqlite3.connect(database, timeout=10, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def watched(site: SweepSite, airflow: SiteAirflow, point: str, run_id: str) -> None:
    """Start a point and wait until its job runs and is watched."""
    airflow.trigger(DAG, {"point": point}, run_id=run_id)
    wait_until(
        lambda: airflow.task_states(DAG, run_id).get("work.watch") == "deferred", 90, f"{run_id} to wait"
    )
    wait_until(
        lambda: "RUNNING" in site.states(f"stopping.{point}.").get(f"stopping.{point}.work.a1", ()), 60, point
    )


def let_end(site: SweepSite, point: str) -> None:
    (site.runs / "stopping" / point / "work" / "go").touch()


def test_stopping_a_run_cancels_its_job_although_no_trigger_runs(
    site: SweepSite, airflow: SiteAirflow
) -> None:
    airflow.wait_for_dag(DAG)
    watched(site, airflow, "stopped", "stopped")
    with without_triggerer(airflow):
        airflow.mark_run(DAG, "stopped", "failed")
        site.expect_states("stopping.stopped.", {"stopping.stopped.work.a1": ["CANCELLED"]}, timeout=90)
        wait_until(
            lambda: airflow.task_states(DAG, "stopped")["cancel_left"] == "success", 60, "the teardown"
        )
    assert airflow.ended(DAG, "stopped") == "failed"
    verdict = site.verdict(site.runs / "stopping" / "stopped" / "work", "work")
    assert (verdict["outcome"], verdict["attempt"]) == ("cancelled", 1)
    let_end(site, "stopped")
    airflow.trigger(DAG, {"point": "stopped"}, run_id="stopped~2")
    assert airflow.ended(DAG, "stopped~2") == "success"
    site.expect_states(
        "stopping.stopped.",
        {"stopping.stopped.work.a1": ["CANCELLED"], "stopping.stopped.work.a2": ["COMPLETED"]},
    )


def test_clearing_a_wait_cancels_its_job_and_submits_the_next_attempt(
    site: SweepSite, airflow: SiteAirflow
) -> None:
    """The new try starts before the old trigger's on_kill has run."""
    airflow.wait_for_dag(DAG)
    watched(site, airflow, "cleared", "cleared")
    airflow.clear(DAG, "cleared", ["work.watch"])
    running = {"stopping.cleared.work.a1": ["CANCELLED"], "stopping.cleared.work.a2": ["RUNNING"]}
    site.expect_states("stopping.cleared.", running, timeout=90)
    let_end(site, "cleared")
    assert airflow.ended(DAG, "cleared") == "success"
    site.expect_states("stopping.cleared.", {**running, "stopping.cleared.work.a2": ["COMPLETED"]})


def test_two_runs_of_a_point_share_one_job(site: SweepSite, airflow: SiteAirflow) -> None:
    airflow.wait_for_dag(DAG)
    runs = ("twice", "twice~2")
    for run_id in runs:
        airflow.trigger(DAG, {"point": "twice"}, run_id=run_id)
    for run_id in runs:
        wait_until(
            lambda run_id=run_id: airflow.task_states(DAG, run_id).get("work.watch") == "deferred", 90, run_id
        )
    let_end(site, "twice")
    assert [airflow.ended(DAG, run_id) for run_id in runs] == ["success", "success"]
    site.expect_states("stopping.twice.", {"stopping.twice.work.a1": ["COMPLETED"]})


def test_jobs_wait_for_a_free_place(site: SweepSite, airflow: SiteAirflow) -> None:
    dag_id, points = "throttled.point", "abcd"
    airflow.wait_for_dag(dag_id)
    for point in points:
        airflow.trigger(dag_id, {"point": point}, run_id=point)

    def waiting() -> list[str]:
        return [
            point for point in points if airflow.task_states(dag_id, point).get("work.submit") == "deferred"
        ]

    wait_until(
        lambda: len(waiting()) == 2 and len(site.queued("throttled.")) == 2, 120, "two jobs, and two waits"
    )
    stopped, *_ = waiting()
    specs = str(site.specs)  # the same file as for the other points
    with site.dags_test(dag_id, {"point": "e"}, AIRFLOW_MEGATRON_SWEEP_SPECS=specs) as process:
        output = read_until(process, "max_jobs is 2, and the queue holds 2 of throttled", 120)
        assert process.poll() is None, output[-4000:]
        airflow.mark(dag_id, stopped, "work.submit", "failed")
        assert len(site.queued("throttled.")) == 2
        (site.runs / "throttled" / "go").touch()
        assert process.communicate(timeout=patient(180)) is not None
        assert process.returncode == 0
    assert {point: airflow.ended(dag_id, point) for point in points} == {
        point: "failed" if point == stopped else "success" for point in points
    }
    done = [point for point in "abcde" if point != stopped]
    site.expect_states("throttled.", {f"throttled.{point}.work.a1": ["COMPLETED"] for point in done})
