"""The trainer of one point crashes; the other point is not affected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def failed(airflow: SiteAirflow) -> str:
    for dag_id in ("failing.point", "failing"):
        airflow.wait_for_dag(dag_id)
    run_id = airflow.trigger("failing")
    assert airflow.ended("failing", run_id) == "failed"
    return run_id


def test_the_other_point_finishes(site: SweepSite, airflow: SiteAirflow, failed: str) -> None:
    site.expect_states(
        "failing.",
        {
            "failing.data=mock.pretrain.a1": ["COMPLETED"],
            "failing.data=gone.pretrain.a1": ["FAILED"],
        },
    )
    assert airflow.run_state("failing.point", "data:mock") == "success"
    assert airflow.run_state("failing.point", "data:gone") == "failed"
    assert site.verdict(site.runs / "failing" / "data=mock", "pretrain")["outcome"] == "finished"
    assert site.verdict(site.runs / "failing" / "data=gone", "pretrain")["outcome"] == "failed"


def test_the_report_names_the_failed_job(site: SweepSite, airflow: SiteAirflow, failed: str) -> None:
    states = airflow.task_states("failing", failed)
    assert states.pop("report") == "failed"
    assert set(states.values()) == {"success"}
    log = airflow.task_log("failing", failed, "report")
    assert "failing.data=gone.pretrain: failed" in log
    assert "failing.data=mock.pretrain: failed" not in log
    assert (site.local / "results" / "failing" / "report.html").exists()


def test_the_task_log_shows_the_trainers_last_lines(
    site: SweepSite, airflow: SiteAirflow, failed: str
) -> None:
    written = (site.runs / "failing" / "data=gone" / "logs" / "pretrain-1.out").read_text().splitlines()
    last = next(line for line in reversed(written) if line.strip())
    assert "/nowhere/gone.idx does not exist" in last
    log = airflow.task_log("failing.point", "data:gone", "pretrain.watch")
    assert last in log
    assert "error calling listener" not in log
    reason = "the job ended as FAILED with exit code 2: a file of a data set is missing"
    assert f"failing.data=gone.pretrain: it would fail again: {reason}" in log


def test_the_next_run_repeats_the_failed_point_alone(
    site: SweepSite, airflow: SiteAirflow, failed: str
) -> None:
    run_id = airflow.trigger("failing")
    assert airflow.ended("failing", run_id) == "failed"
    site.expect_states(
        "failing.",
        {
            "failing.data=mock.pretrain.a1": ["COMPLETED"],
            "failing.data=gone.pretrain.a1": ["FAILED"],
            "failing.data=gone.pretrain.a2": ["FAILED"],
        },
    )
    assert airflow.run_state("failing.point", "data:gone~2") == "failed"
