"""Effects of the web UI's buttons on the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patience import wait_until

if TYPE_CHECKING:
    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration


def test_clearing_a_task_runs_its_stage_again(site: SweepSite, airflow: SiteAirflow) -> None:
    airflow.wait_for_dag("clearing.point")
    run_id = airflow.trigger("clearing.point", {"point": "only"})
    assert airflow.ended("clearing.point", run_id) == "success"
    stages = ("first", "second", "third")
    once = {f"clearing.only.{stage}.a1": ["COMPLETED"] for stage in stages}
    site.expect_states("clearing.", once)
    tries = airflow.try_number("clearing.point", run_id, "second.watch")
    airflow.clear("clearing.point", run_id, ["second.submit", "second.watch"])
    wait_until(
        lambda: airflow.try_number("clearing.point", run_id, "second.watch") > tries, 60, "another try"
    )
    assert airflow.ended("clearing.point", run_id) == "success"
    site.expect_states("clearing.", {**once, "clearing.only.second.a2": ["COMPLETED"]})
    counts = {
        stage: len((site.runs / "clearing" / "only" / stage / "times").read_text().split())
        for stage in stages
    }
    assert counts == {"first": 1, "second": 2, "third": 1}


def test_marking_a_wait_failed_cancels_its_job_alone(site: SweepSite, airflow: SiteAirflow) -> None:
    dag_id, points = "waiting.point", ("a", "b")
    airflow.wait_for_dag(dag_id)
    for point in points:
        airflow.trigger(dag_id, {"point": point}, run_id=point)
    attempts = [f"waiting.{point}.work.a1" for point in points]
    for point, attempt in zip(points, attempts, strict=True):
        wait_until(lambda name=attempt: site.is_running(name), 60, attempt)
        wait_until(
            lambda run_id=point: airflow.task_states(dag_id, run_id)["work.watch"] == "deferred",
            60,
            f"{point} to be watched",
        )
    airflow.mark(dag_id, "a", "work.watch", "failed")
    wait_until(lambda: site.states(attempts[0]) == {attempts[0]: ["CANCELLED"]}, 60, "the job's cancellation")
    assert site.is_running(attempts[1])
    stage = site.runs / "waiting" / "a" / "work"
    wait_until((stage / ".jobs" / "work" / "verdict.json").exists, 30, "the cancellation's record")
    verdict = site.verdict(stage, "work")
    assert (verdict["outcome"], verdict["attempt"]) == ("cancelled", 1)
    (site.runs / "waiting" / "go").touch()
    assert airflow.ended(dag_id, "b") == "success"
    assert airflow.ended(dag_id, "a") == "failed"
    # the next run of the point starts a new attempt instead of using the cancelled one
    airflow.trigger(dag_id, {"point": "a"}, run_id="a~2")
    assert airflow.ended(dag_id, "a~2") == "success"
    site.expect_states(
        "waiting.",
        {
            "waiting.a.work.a1": ["CANCELLED"],
            "waiting.a.work.a2": ["COMPLETED"],
            "waiting.b.work.a1": ["COMPLETED"],
        },
    )
