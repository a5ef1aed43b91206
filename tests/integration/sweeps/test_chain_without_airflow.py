"""The chain of a point finishes while every process of Airflow is stopped; stopping its run cancels the whole chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patience import wait_until

if TYPE_CHECKING:
    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

STAGES = ("first", "second", "third")


def begun(site: SweepSite, airflow: SiteAirflow, point: str) -> None:
    airflow.wait_for_dag("queued.point")
    airflow.trigger("queued.point", {"point": point}, run_id=point)
    wait_until(lambda: len(site.queued(f"queued.{point}.")) == len(STAGES), 240, "all stages to be queued")


def test_chain_ends_while_airflow_is_stopped(site: SweepSite, airflow: SiteAirflow) -> None:
    begun(site, airflow, "goes_on")
    first = site.runs / "queued" / "goes_on" / "first"
    made = first / "made"
    airflow.stop()
    try:
        assert not made.exists()
        (first / "go").touch()
        wait_until(lambda: not site.queued("queued.goes_on."), 120, "the whole chain to end")
        assert made.read_text().split() == list(STAGES)
    finally:
        airflow.start()
    assert airflow.ended("queued.point", "goes_on") == "success"
    states = airflow.task_states("queued.point", "goes_on")
    assert set(states.values()) == {"success"}
    site.expect_states("queued.goes_on.", {f"queued.goes_on.{stage}.a1": ["COMPLETED"] for stage in STAGES})
    assert made.read_text().split() == list(STAGES)


def test_stopping_the_run_cancels_what_is_queued(site: SweepSite, airflow: SiteAirflow) -> None:
    begun(site, airflow, "stopped")
    wait_until(lambda: site.is_running("queued.stopped.first.a1"), 60, "the first stage to run")
    wait_until(
        lambda: airflow.task_states("queued.point", "stopped").get("first.watch") == "deferred",
        120,
        "it to be watched",
    )
    airflow.mark_run("queued.point", "stopped", "failed")
    airflow.ended(
        "queued.point", "stopped"
    )  # the state of the run is that of its last stage, which Airflow marks as skipped
    wait_until(lambda: not site.queued("queued.stopped."), 60, "all jobs to be cancelled")
    found = site.states("queued.stopped.")
    assert {state for states in found.values() for state in states} == {"CANCELLED"}
    assert not (site.runs / "queued" / "stopped" / "first" / "made").exists()
