"""A hung training is restarted, and Airflow shows its output while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patience import wait_until

if TYPE_CHECKING:
    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

ATTEMPTS = tuple(f"hung.only.pretrain.a{number}" for number in (1, 2))


def test_a_training_that_hangs_is_restarted_from_its_checkpoint(
    site: SweepSite, airflow: SiteAirflow
) -> None:
    airflow.wait_for_dag("hung.point")
    run_id = airflow.trigger("hung.point", {"point": "only"})

    def log() -> str:
        return airflow.task_log("hung.point", run_id, "pretrain.watch")

    wait_until(lambda: "iteration        6/      12 |" in log(), 180, "the live log")
    assert airflow.run_state("hung.point", run_id) == "running"
    assert airflow.ended("hung.point", run_id) == "success"
    site.expect_states("hung.", {ATTEMPTS[0]: ["CANCELLED"], ATTEMPTS[1]: ["COMPLETED"]})
    verdict = site.verdict(site.runs / "hung" / "only", "pretrain")
    assert (verdict["outcome"], verdict["attempt"]) == ("finished", 2)
    text = log()
    # the log has the output of both attempts; the second one continued from iteration 4
    assert "| a rank prints on" in text
    assert "since it reached iteration 6 (training; the limit is 6 s)" in text
    assert text.count("iteration        6/      12 |") >= 2
    assert "iteration       12/      12 |" in text


def test_what_a_failed_training_has_saved_is_converted_one_task_after_another(site: SweepSite) -> None:
    """With ``airflow dags test`` the conversion could wait for ever for the verdict on the training."""
    status, output = site.run_dags_test("unfinished.point", {"point": "only"})
    assert status == 1, output[-4000:]
    site.expect_states(
        "unfinished.",
        {
            "unfinished.only.pretrain.a1": ["FAILED"],
            "unfinished.only.pretrain.a2": ["FAILED"],
            "unfinished.only.pretrain.convert.a1": ["COMPLETED"],
        },
    )
    point = site.runs / "unfinished" / "only"
    assert [path.name for path in (point / "converted_checkpoints").iterdir()] == ["iter_4.done"]
    assert site.verdict(point, "pretrain")["outcome"] == "failed"
    assert site.verdict(point, "pretrain.convert")["outcome"] == "finished"
    assert "| RuntimeError: the weights are gone" in output
    assert "the line that decided: RuntimeError: the weights are gone" in output
