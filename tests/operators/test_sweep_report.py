"""Jobs that make the report of a sweep fail."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from example_specs import CHAIN

from airflow_megatron.operators import sweep_report
from airflow_megatron.operators.sweep_report import SweepReportOperator, report_edges, unfinished_jobs
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.fits.optima import Cell, find_optima
from airflow_megatron.results.fits.sweep_fits import FamilyFits, FittedCell, SweepFits
from airflow_megatron.results.readings.progress import StageState, StageStatus
from airflow_megatron.slurm.remote.transport import LoginExpiredError
from airflow_megatron.spec.model.schema import NotifySection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path


def test_jobs_cancelled_by_a_condition_are_expected_to_be_missing(cluster) -> None:
    jobs = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), cluster).jobs
    statuses = {job.name: StageStatus(job.point, job.stage, job.name, StageState.FINISHED) for job in jobs}

    def unfinished(**states: StageState | bool) -> set[str]:
        changed = dict(statuses)
        for stage, state in states.items():
            name = f"chain.lr0.001.{stage.replace('__', '.')}"
            intended = state is True
            changed[name] = dataclasses.replace(
                changed[name], state=StageState.CANCELLED if intended else state, intended=intended
            )
        return {status.stage for status in unfinished_jobs(jobs, changed.values())}

    branch = next(job.stage for job in jobs if job.stage.startswith("cooldown") and "." not in job.stage)
    below = {f"{branch}__convert": StageState.WAITING, f"{branch}__evaluate": StageState.WAITING}
    assert unfinished() == set()
    assert unfinished(**{branch: True}, **below) == set()
    assert unfinished(**{branch: StageState.CANCELLED}, **below) == {
        branch,
        f"{branch}.convert",
        f"{branch}.evaluate",
    }
    assert unfinished(**{branch: True, f"{branch}__convert": StageState.FAILED}) == {f"{branch}.convert"}


def test_failed_jobs_are_named_before_the_ones_that_they_block(cluster) -> None:
    jobs = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), cluster).jobs
    failed = [job.name for job in jobs if job.stage == "pretrain"]
    statuses = [
        StageStatus(
            job.point, job.stage, job.name, StageState.FAILED if job.name in failed else StageState.BLOCKED
        )
        for job in jobs
    ]
    named = [status.job for status in unfinished_jobs(jobs, statuses)]
    assert named[: len(failed)] == failed
    assert len(named) == len(jobs)


def fits_of(*losses: list[float]) -> SweepFits:
    """Return the fits of sizes whose losses belong to the same learning rates."""
    rates = [1e-4 * 2**step for step in range(7)]
    optima = find_optima({str(size): Cell({"lr": rates}, each) for size, each in enumerate(losses)})
    cells = tuple(
        FittedCell(1e6 * size, 2e9, (), optimum) for size, optimum in enumerate(optima.values(), start=1)
    )
    return SweepFits("unpadded", "validation", (FamilyFits("", cells, {}, {}, None),), ())


VALLEY = [3.0 + 0.02 * (step - 3) ** 2 for step in range(7)]
FALLING = [4.0 - 0.1 * step for step in range(7)]


def test_an_optimum_at_the_edge_is_reported_once_for_each_report_that_finds_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_NOTICES", str(tmp_path / "notices"))
    own = "airflow_megatron.notifications.json_lines.JsonLinesNotifier"
    sections = [NotifySection(notifier=own, on=["edge"], arguments={"path": "a.jsonl"})]
    context: Any = {"ti": SimpleNamespace(dag_id="s", task_id="report", run_id="r", try_number=1)}
    page = tmp_path / "report" / "index.html"
    with set_current_context(context):
        for fits in (
            fits_of(VALLEY),
            fits_of(VALLEY, FALLING),
            fits_of(VALLEY, FALLING),  # the report was cleared and ran again
            fits_of(FALLING, FALLING[::-1]),
        ):
            report_edges(fits, "s", page, sections)
    found = [json.loads(line) for line in (tmp_path / "notices" / "a.jsonl").read_text().splitlines()]
    assert [(line["what"], line["reason"].count("lr is at the edge")) for line in found] == [
        ("edge", 1),
        ("edge", 2),
    ]
    assert "N 2M, D 2B: the optimum of lr is at the edge" in found[0]["reason"]
    assert "train larger values" in found[0]["reason"]
    assert found[0]["sweep"] == "s"


def test_a_report_waits_for_a_refused_login(cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **options: Any) -> None:
        raise LoginExpiredError("login refused since today")

    plan = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), cluster)
    environment = SimpleNamespace(cluster=cluster)
    on_cluster = SimpleNamespace(plan_environment=environment)
    pinned = SimpleNamespace(placed_plan=lambda: plan, by_cluster={cluster.name: on_cluster}, digest="")
    monkeypatch.setattr(sweep_report, "stored_plan", lambda *_: pinned)
    monkeypatch.setattr("airflow_megatron.plan.run_results.ReportedRun.of", lambda *args, **options: None)
    monkeypatch.setattr("airflow_megatron.plan.run_results.write_results", refused)
    task = SweepReportOperator(task_id="t", pinned={})
    context: Any = {"ti": SimpleNamespace(run_id="r")}
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    assert callable(getattr(task, deferred.value.method_name))
