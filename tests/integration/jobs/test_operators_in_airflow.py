"""Operators in DAGs of users in a running Airflow: marked, cleared and killed, and scheduled on a sweep."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration


def job_begun(site: SweepSite, airflow: SiteAirflow, dag_id: str, run_id: str, task: str = "work") -> Path:
    """Start a run and wait until the job of a task has started; return the job's directory."""
    airflow.wait_for_dag(dag_id)
    airflow.trigger(dag_id, run_id=run_id)
    directory = site.runs / "jobs" / dag_id / run_id / task
    wait_until((directory / "times").exists, 120, f"the job of {dag_id} {run_id}")
    return directory


def in_state(airflow: SiteAirflow, dag_id: str, run_id: str, task: str, state: str) -> Callable[[], bool]:
    return lambda: airflow.task_states(dag_id, run_id)[task] == state


def followed(airflow: SiteAirflow, dag_id: str, run_id: str, task: str) -> Callable[[], bool]:
    """Return whether a trigger watches a task's job; before that it cannot cancel the job."""
    return lambda: "is RUNNING" in airflow.task_log(dag_id, run_id, task)


def attempts_begun(directory: Path, count: int) -> bool:
    return len((directory / "times").read_text().split()) == count


def test_marked_and_cleared_while_deferred(site: SweepSite, airflow: SiteAirflow) -> None:
    dag_id = "own_deferred"
    marked, other = (job_begun(site, airflow, dag_id, run) for run in ("m", "o"))
    wait_until(followed(airflow, dag_id, "m", "work"), 60, "the trigger")
    first = airflow.xcom(dag_id, "m", "work", "job_id")
    airflow.mark(dag_id, "m", "work", "failed")
    wait_until((marked / ".jobs" / "job" / "verdict.json").exists, 60, "the cancellation's record")
    assert site.verdict(marked, "job")["outcome"] == "cancelled"
    wait_until(lambda: len(site.queued(f"{dag_id}.")) == 1, 60, "the other job to be left alone")
    airflow.clear(dag_id, "m", ["work"])
    wait_until(partial(attempts_begun, marked, 2), 120, "the second attempt")
    wait_until(in_state(airflow, dag_id, "o", "work", "deferred"), 60, "the task to be deferred")
    airflow.clear(dag_id, "o", ["work"])
    wait_until(partial(attempts_begun, other, 2), 120, "the second attempt")
    for directory in (marked, other):
        (directory / "go").touch()
    for run in ("m", "o"):
        assert airflow.ended(dag_id, run) == "success"
        assert airflow.xcom(dag_id, run, "work")["attempt"] == 2
    ended = airflow.xcom(dag_id, "m", "work")
    assert (ended["state"], ended["run_dir"]) == ("COMPLETED", str(marked))
    assert ended["job_id"] != first
    site.expect_states(
        f"{dag_id}.",
        {f"{dag_id}.work.a1": ["CANCELLED"] * 2, f"{dag_id}.work.a2": ["COMPLETED"] * 2},
    )


def test_killed_marked_and_cleared_in_a_worker(site: SweepSite, airflow: SiteAirflow) -> None:
    dag_id = "own_in_worker"
    killed = job_begun(site, airflow, dag_id, "k")
    site.connected_task().kill()
    wait_until(lambda: airflow.try_number(dag_id, "k", "work") == 2, 120, "the second try")
    (killed / "go").touch()
    assert airflow.ended(dag_id, "k") == "success"
    assert airflow.xcom(dag_id, "k", "work")["attempt"] == 1
    assert attempts_begun(killed, 1)
    marked, cleared = (job_begun(site, airflow, dag_id, run) for run in ("m", "c"))
    airflow.mark(dag_id, "m", "work", "failed")
    airflow.clear(dag_id, "c", ["work"])
    wait_until(partial(attempts_begun, cleared, 2), 120, "the second attempt")
    assert airflow.ended(dag_id, "m") == "failed"
    wait_until((marked / ".jobs" / "job" / "verdict.json").exists, 60, "the cancellation's record")
    assert site.verdict(marked, "job")["outcome"] == "cancelled"
    (cleared / "go").touch()
    assert airflow.ended(dag_id, "c") == "success"
    assert airflow.xcom(dag_id, "c", "work")["attempt"] == 2
    wait_until(lambda: site.queued(f"{dag_id}.") == [], 60, "no job to be left in the queue")


def test_a_sensor_takes_its_job_with_it(site: SweepSite, airflow: SiteAirflow) -> None:
    dag_id = "own_sensor"
    marked = job_begun(site, airflow, dag_id, "m", "submit")
    wait_until(followed(airflow, dag_id, "m", "wait"), 90, "the trigger")
    airflow.mark(dag_id, "m", "wait", "failed")
    wait_until(lambda: site.queued(f"{dag_id}.") == [], 60, "the job's cancellation")
    assert airflow.ended(dag_id, "m") == "failed"
    airflow.clear(dag_id, "m", ["wait"])
    wait_until(partial(attempts_begun, marked, 2), 120, "the second attempt")
    (marked / "go").touch()
    assert airflow.ended(dag_id, "m") == "success"
    assert airflow.xcom(dag_id, "m", "wait")["attempt"] == 2


def test_functions(site: SweepSite, airflow: SiteAirflow) -> None:
    dag_id = "own_functions"
    airflow.wait_for_dag(dag_id)
    run_id = airflow.trigger(dag_id, run_id="f")
    assert airflow.ended(dag_id, run_id) == "success"
    job = airflow.xcom(dag_id, run_id, "write")
    assert (site.runs / "jobs" / dag_id / "f" / "write" / "sum.txt").read_text() == "6\n"
    assert job["state"] == "COMPLETED"


def test_a_dag_starts_after_each_training_of_a_sweep(site: SweepSite, airflow: SiteAirflow) -> None:
    after = "example_after_sweep"
    for dag_id in (after, "quickstart.point"):
        airflow.wait_for_dag(dag_id)
    assert airflow.runs_of(after) == []
    airflow.trigger("quickstart.point", {"point": "a"}, run_id="p")
    assert airflow.ended("quickstart.point", "p") == "success"
    wait_until(lambda: len(airflow.runs_of(after)) == 1, 90, "the DAG that is scheduled on the sweep")
    (run_id,) = airflow.runs_of(after)
    assert airflow.ended(after, run_id) == "success"
    assert airflow.xcom(after, run_id, "finished") == [str(site.runs / "quickstart" / "a" / "pretrain")]
    log = next((site.runs / "jobs" / after).glob("*/size/0/logs/job-1.out"))
    assert log.read_text().split()[-1].endswith("/pretrain/checkpoints")
