"""``airflow dags test``: one point, then the whole sweep, without a scheduler."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import pytest
from patience import wait_until

from airflow_megatron.megatron.logs.log_lines import IterationRecord, LogParser

if TYPE_CHECKING:
    from pathlib import Path

    from sweep_site import SweepSite

pytestmark = pytest.mark.integration

SHARED = {"commands.shared.a1": ["COMPLETED"]}


def point_jobs(point: str) -> dict[str, list[str]]:
    return {f"commands.{point}.{stage}.a1": ["COMPLETED"] for stage in ("write", "read")}


def test_one_point_then_the_sweep(site: SweepSite) -> None:
    status, output = site.run_dags_test("commands.point", {"point": "a"})
    assert status == 0, output[-4000:]
    site.expect_states("commands.", {**SHARED, **point_jobs("a")})
    status, output = site.run_dags_test("commands")
    assert status == 0, output[-4000:]
    assert "1 of 2 points have finished and are not started again: a" in output
    site.expect_states("commands.", {**SHARED, **point_jobs("a"), **point_jobs("b")})
    runs = site.runs / "commands"
    assert (runs / "_shared" / "shared" / "word").read_text() == "shared\n"
    for point in ("a", "b"):
        assert (runs / point / "write" / "letters").read_text() == f"{point}\n"
        assert (runs / point / "read" / "logs" / "read-1.out").read_text().splitlines()[-1] == point


CONSUMER = """
from airflow.sdk import DAG, task
from airflow_megatron.assets.sweep_assets import report_alias, stage_alias

for name, alias in (("after_write", stage_alias("commands", "write")), ("after_report", report_alias("commands"))):
    with DAG(name, schedule=alias, is_paused_upon_creation=False):
        task(lambda: None).override(task_id="use")()
"""


def test_other_dags_are_scheduled_on_what_a_sweep_finishes(site: SweepSite, tmp_path: Path) -> None:
    (tmp_path / "sweeps.py").symlink_to(site.place / "project" / "dags" / "sweeps.py")
    (tmp_path / "consumer.py").write_text(CONSUMER)
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path),
        "AIRFLOW_MEGATRON_LOCAL": str(tmp_path / "local"),
    }
    (tmp_path / "local").mkdir()
    status, output = site.run_dags_test("commands.point", {"point": "b"}, timeout=400, **environment)
    assert status == 0, output[-4000:]
    with sqlite3.connect(site.without_scheduler.database) as database:
        events = {
            uri: json.loads(extra)
            for uri, extra in database.execute(
                "SELECT asset.uri, asset_event.extra FROM asset_event JOIN asset ON asset.id = asset_event.asset_id"
            )
        }
        waiting = {name for (name,) in database.execute("SELECT target_dag_id FROM asset_dag_run_queue")}
    written = events["megatron://commands/write/b"]
    assert (written["sweep"], written["stage"], written["point"]) == ("commands", "write", "b")
    assert written["outputs"] == [f"{written['run_dir']}/letters"]
    assert "megatron://commands/read/b" in events
    assert "after_write" in waiting
    assert "after_report" not in waiting


@pytest.mark.long
def test_a_fresh_start_waits_for_files_of_its_own(site: SweepSite) -> None:
    for conf in ({}, {"fresh_start": True}):
        status, output = site.run_dags_test("again", conf, timeout=400)
        assert status == 0, output[-4000:]
    point = site.runs / "again" / "a"
    submitted = point / "use" / ".jobs" / "use" / "2" / "created"
    assert submitted.stat().st_mtime > (point / "make" / "made").stat().st_mtime
    states = {f"again.a.{stage}.a{number}": ["COMPLETED"] for stage in ("make", "use") for number in (1, 2)}
    site.expect_states("again.", states)


def test_a_sweep_with_an_array(site: SweepSite) -> None:
    status, output = site.run_dags_test("arrays", timeout=400)
    assert status == 0, output[-4000:]

    def tasks_ended() -> bool:
        tasks = [sorted(states) for name, states in site.states("arrays.").items() if ".array." in name]
        return tasks == [["COMPLETED", "FAILED"]]

    wait_until(tasks_ended, 60, "accounting to know how the array's tasks ended")
    site.expect_states("arrays.p", {"arrays.p1.work.a2": ["COMPLETED"]})
    for number in range(2):
        run_dir = site.runs / "arrays" / f"p{number}" / "work"
        assert site.verdict(run_dir, "work")["attempt"] == number + 1
        assert set((run_dir / "number").read_text().split()) == {str(number)}


def test_a_point_that_does_not_exist(site: SweepSite) -> None:
    status, output = site.run_dags_test("commands.point", {"point": "c"})
    assert status == 1
    assert "the sweep has no point 'c' (it has a, b" in output, output[-4000:]


@pytest.mark.long
def test_a_training_takes_the_learning_rate_that_a_search_found(site: SweepSite) -> None:
    status, output = site.run_dags_test("lr_finder", timeout=400)
    assert status == 0, output[-4000:]
    run = site.runs / "lr_finder" / "lion"
    found = float((run / "search" / "lr_finder" / "suggested_lr").read_text())
    log = LogParser()
    records = [*log.feed((run / "logs" / "pretrain-1.out").read_bytes()), *log.finish()]
    rates = [record.learning_rate for record in records if isinstance(record, IterationRecord)]
    assert rates == pytest.approx([found] * 3, rel=1e-5)
    (reported,) = json.loads((site.local / "results" / "lr_finder" / "lr_finder.json").read_text())
    assert (reported["sweep_params"], reported["suggested"]) == ({"optimizer": "lion"}, found)


def test_a_benchmark_and_what_is_meant_to_run_out_of_memory(site: SweepSite) -> None:
    status, output = site.run_dags_test("benchmark")
    assert status == 0, output[-4000:]
    site.expect_states(
        "benchmark.",
        {"benchmark.small.measured.a1": ["COMPLETED"], "benchmark.small.too_large.a1": ["FAILED"]},
    )
    measured, too_large = json.loads((site.local / "results" / "benchmark" / "benchmark.json").read_text())
    assert (measured["outcome"], measured["iterations"]) == ("ok", 6)
    assert measured["step_ratio"] == pytest.approx(measured["step_ms"] / 5)
    assert measured["tokens_per_second"] > 0
    assert too_large["outcome"] == "oom (expected)"
