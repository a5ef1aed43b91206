"""A spec is corrected after a job has failed: the stored plan is used until `plan` is cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patience import wait_until

if TYPE_CHECKING:
    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration


def clear_and_end(airflow: SiteAirflow, dag_id: str, run_id: str, task: str) -> str:
    """Clear only one task; return the final state of its run."""
    tries = airflow.try_number(dag_id, run_id, task)
    airflow.clear(dag_id, run_id, [task])
    wait_until(lambda: airflow.try_number(dag_id, run_id, task) > tries, 120, f"another try of {task}")
    return airflow.ended(dag_id, run_id, 240)


def test_a_corrected_spec_is_used_when_plan_is_cleared(site: SweepSite, airflow: SiteAirflow) -> None:
    for dag_id in ("corrected.point", "corrected"):
        airflow.wait_for_dag(dag_id)
    run_id = airflow.trigger("corrected")
    assert airflow.ended("corrected", run_id, 300) == "failed"
    assert airflow.run_state("corrected.point", "a") == "failed"
    spec = site.specs / "corrected.yaml"
    spec.write_text(spec.read_text().replace("exit 3", "exit 0"))
    # the stored plan runs again, and the run reports this
    assert clear_and_end(airflow, "corrected.point", "a", "work.watch") == "failed"
    log = airflow.task_log("corrected.point", "a", "work.watch")
    message = f"clear `plan` of run {run_id} of corrected"
    assert "changed since this run was planned" in log
    assert message in log
    note = airflow.run_note("corrected.point", "a")
    assert str(spec) in note
    assert message in note
    # plan reads the change, and the tasks of the point use the newest plan of the sweep's run
    clear_and_end(airflow, "corrected", run_id, "plan")
    assert clear_and_end(airflow, "corrected.point", "a", "work.watch") == "success"
    assert airflow.run_note("corrected.point", "a") == ""
    attempts = {f"corrected.a.work.a{number}": ["FAILED"] for number in (1, 2)}
    site.expect_states("corrected.", {**attempts, "corrected.a.work.a3": ["COMPLETED"]})
