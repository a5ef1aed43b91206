"""Conditions, events, stages for each checkpoint, and files of other tools, on the cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from patience import wait_until

if TYPE_CHECKING:
    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def started(airflow: SiteAirflow) -> dict[str, str]:
    """Start the sweeps together; return sweep → run id."""
    sweeps = ("conditions", "each", "autoexperiment", "oellm")
    for sweep in sweeps:
        airflow.wait_for_dag(f"{sweep}.point")
        airflow.wait_for_dag(sweep)
    return {sweep: airflow.trigger(sweep) for sweep in sweeps}


def succeeded(airflow: SiteAirflow, run_id: str) -> set[str]:
    states = airflow.task_states("conditions", run_id)
    return {task for task, state in states.items() if state == "success"}


def test_conditions_start_stop_and_finish_a_stage(
    site: SweepSite, airflow: SiteAirflow, started: dict[str, str]
) -> None:
    wait_until(lambda: "launch" in succeeded(airflow, started["conditions"]), 120, "the point to be launched")
    assert airflow.ended("conditions.point", "a", timeout=300) == "success"
    assert airflow.ended("conditions", started["conditions"]) == "success"
    site.expect_states(
        "conditions.",
        {
            "conditions.a.work.a1": ["COMPLETED"],
            "conditions.a.beside.a1": ["COMPLETED"],
            "conditions.a.after.a1": ["COMPLETED"],
            "conditions.a.endless.a1": ["CANCELLED"],
            "conditions.a.counted.a1": ["COMPLETED"],
            "conditions.a.counted.a2": ["COMPLETED"],
            "conditions.a.counted.a3": ["COMPLETED"],
            "conditions.a.announced.a1": ["FAILED"],
            "conditions.a.fails_once.a1": ["FAILED"],
            "conditions.a.fails_once.a2": ["COMPLETED"],
            "conditions.a.watched.a1": ["CANCELLED"],
            "conditions.a.watched.a2": ["COMPLETED"],
        },
    )
    point = site.runs / "conditions" / "a"
    assert (point / "watched" / "heard").read_text() == "here\n"
    assert (point / "fails_once" / "heard").read_text() == "end\n"
    assert site.verdict(point / "announced", "announced")["outcome"] == "finished"
    assert site.verdict(point / "endless", "endless")["outcome"] == "cancelled"
    assert site.verdict(point / "counted", "counted")["outcome"] == "finished"
    tasks = airflow.task_states("conditions.point", "a")
    assert tasks["endless.watch"] == tasks["needless.watch"] == "skipped"
    assert site.verdict(point / "needless", "needless")["outcome"] == "cancelled"
    assert site.verdict(point / "done", "done")["outcome"] == "finished"


def test_every_checkpoint_is_converted_and_evaluated(
    site: SweepSite, airflow: SiteAirflow, started: dict[str, str]
) -> None:
    assert airflow.ended("each", started["each"], timeout=420) == "success"
    run = site.runs / "each" / "lr0.002"
    made = sorted(path.name for path in (run / "converted_checkpoints").glob("*.done"))
    assert made == ["iter_20.done", "iter_30.done", "iter_32.done"]
    results = sorted(path.parent.name for path in (run / "eval_results").glob("iter_*/results.json"))
    assert results == ["iter_20", "iter_30", "iter_32"]
    log = (run / "logs" / "pretrain-1.out").read_text()
    assert log.index("[after training is done]") < log.index("saving checkpoint at iteration      32")
    assert site.verdict(run, "pretrain.convert")["outcome"] == "finished"
    assert site.verdict(run, "pretrain.evaluate")["outcome"] == "finished"


def test_another_tools_file_runs_as_it_is(
    site: SweepSite, airflow: SiteAirflow, started: dict[str, str]
) -> None:
    assert airflow.ended("autoexperiment", started["autoexperiment"], timeout=300) == "success"
    expected = {
        f"auto_{rate}_{phase}.a{attempt}": ["COMPLETED"]
        for rate in ("0.01", "0.001")
        for phase, attempts in (("TRAIN", 2), ("EVAL", 1))
        for attempt in range(1, attempts + 1)
    }
    site.expect_states("auto_", expected)
    logs = site.runs / "autoexperiment" / "logs" / "0.01"
    assert "all is done" in (logs / "auto_0.01_TRAIN.out").read_text()
    jobs = [json.loads(path.read_text()) for path in logs.rglob("job.json")]
    assert {job["job"] for job in jobs} == {"auto_0.01_TRAIN", "auto_0.01_EVAL"}


def test_a_file_of_oellm_autoexp_runs_to_its_end(
    site: SweepSite, airflow: SiteAirflow, started: dict[str, str]
) -> None:
    """Its training takes two attempts; the next stage waits for a line in the log of the second one."""
    assert airflow.ended("oellm", started["oellm"], timeout=420) == "success"
    expected = {
        f"oellm.lr{rate}.{job}": ["COMPLETED"]
        for rate in ("0.001", "0.002")
        for job in ("train.a1", "train.a2", "note.a1")
    }
    site.expect_states("oellm.", expected)
    point = site.runs / "oellm" / "lr0.002"
    assert "iteration        6/       6" not in (point / "logs" / "train-1.out").read_text()
    assert (point / "checkpoints" / "latest_checkpointed_iteration.txt").read_text().strip() == "6"
    assert (point / "note" / "note").read_text() == f"{point}\n"
    verdict = site.verdict(point, "train")
    assert (verdict["outcome"], verdict["attempt"]) == ("finished", 2)
    assert "has not evaluated the test set" in verdict["warning"]  # exit_interval ends it before that
