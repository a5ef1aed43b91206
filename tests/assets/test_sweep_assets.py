"""Assets that a sweep emits for other DAGs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import AssetAlias
from airflow.sdk.definitions.asset import AssetAliasUniqueKey, AssetUniqueKey
from airflow.sdk.execution_time.context import OutletEventAccessors, TriggeringAssetEventsAccessor

from airflow_megatron.assets.sweep_assets import announce_report, announce_stage, report_alias, stage_alias
from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.example_dags.example_after_sweep import TRAINED, dag
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text

SPEC = "name: tiny\npoint: p\nstages: {pretrain: {kind: train}, prepare: {kind: command, scope: sweep, command: [a]}}\n"
JOB = {
    "sweep": "tiny",
    "stage": "pretrain",
    "point": "lr=1e-3,b",
    "kind": "train",
    "run_dir": "/runs/tiny/p",
    "outputs": [],
}


EVENT: Any = SimpleNamespace(extra={"run_dir": "/runs/quickstart/a"})


def context(**task: Any) -> Any:
    return {"task": SimpleNamespace(**task), "outlet_events": OutletEventAccessors()}


def announced(given: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Return alias, asset and facts of every event, as the worker reports them."""
    return [
        (event.source_alias_name, event.dest_asset_key.uri, event.extra)
        for accessor in given["outlet_events"]._dict.values()
        for event in accessor.asset_alias_events
    ]


def test_a_finished_stage_names_its_point() -> None:
    given = context(job=JOB)
    announce_stage(
        given, {"outcome": "finished", "job_id": "7", "attempt": 2, "iteration": 100, "state": "COMPLETED"}
    )
    ((alias, uri, facts),) = announced(given)
    assert (alias, uri) == ("megatron://tiny/pretrain", "megatron://tiny/pretrain/lr=1e-3,b")
    assert facts == {**JOB, "job_id": "7", "attempt": 2, "iteration": 100}


def test_a_stage_of_the_whole_sweep_has_no_point() -> None:
    given = context(job={**JOB, "point": "", "stage": "prepare"}, dag_id="tiny")
    announce_stage(given, {"outcome": "finished", "attempt": 1})
    assert [uri for _, uri, _ in announced(given)] == ["megatron://tiny/prepare"]


@pytest.mark.parametrize(("conf", "name"), [({"point": "a"}, "a"), (None, "a~2")])
def test_points_that_watch_the_same_job_announce_assets_of_their_own(
    conf: dict[str, str] | None, name: str
) -> None:
    given = {
        **context(job={**JOB, "point": "", "stage": "prepare"}, dag_id="tiny.point"),
        "run_id": "a~2",
        "dag_run": SimpleNamespace(conf=conf),
    }
    announce_stage(given, {"outcome": "finished", "attempt": 1})
    assert [uri for _, uri, _ in announced(given)] == [f"megatron://tiny/prepare/{name}"]


@pytest.mark.parametrize(
    "result",
    [None, {"outcome": "finished", "passed_over": True, "attempt": 1}, {"outcome": "failed", "attempt": 1}],
)
def test_nothing_new_is_not_announced(result: Any) -> None:
    given = context(job=JOB)
    announce_stage(given, result)
    assert announced(given) == []


def test_a_report() -> None:
    given = context(pinned={"sweep": "tiny"})
    announce_report(given, ["/a/report.html"])
    assert announced(given) == [
        ("megatron://tiny", "megatron://tiny/", {"sweep": "tiny", "files": ["/a/report.html"]})
    ]


def test_the_dags_of_a_sweep_name_them() -> None:
    sweep, point = build_dags(SweepOutline.of(load_sweep_text(SPEC, "s.yaml")))
    outlets = {
        task.task_id: [item for item in task.outlets if isinstance(item, AssetAlias)]
        for task in (*sweep.tasks, *point.tasks)
        if task.outlets
    }
    assert outlets == {
        "pretrain.watch": [stage_alias("tiny", "pretrain")],
        "prepare.watch": [stage_alias("tiny", "prepare")],
        "report": [report_alias("tiny")],
    }


def test_the_example_takes_each_training_once() -> None:
    """Airflow gives an event of an alias twice: under the alias, and under the asset that was attached."""
    events = TriggeringAssetEventsAccessor(
        {
            AssetUniqueKey(name=TRAINED.name + "/a", uri=TRAINED.name + "/a"): [EVENT],
            AssetAliasUniqueKey(name=TRAINED.name): [EVENT],
        }
    )
    finished: Any = dag.get_task("finished")
    assert finished.python_callable(events) == ["/runs/quickstart/a"]
