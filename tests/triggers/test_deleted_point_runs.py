"""Runs of points that a user deletes in Airflow while the sweep's run waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.exceptions import TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_megatron.sensors.point_runs import PointRunsSensor
from airflow_megatron.triggers.point_runs import PointRunsTrigger

RUNS = {"a": "a", "b": "b", "c": "c"}


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The runs in Airflow's database and their states; ``b`` was deleted."""
    known = {"a": "failed", "c": "running"}

    def count(dag_id: str, run_ids: list[str], states: list[str] | None) -> int:
        return sum(run in known and (states is None or known[run] in states) for run in run_ids)

    monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", count)
    return known


def sensor() -> PointRunsSensor:
    return PointRunsSensor(task_id="wait", point_dag_id="s.point", runs=RUNS)


def test_the_sweeps_run_waits_for_the_remaining_ones_only(
    states: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TaskDeferred):
        sensor().execute({})
    states["c"] = "success"
    sensor().execute({})
    logged = capsys.readouterr().out
    assert "all 3 points have ended" in logged
    assert "the runs of 1 of them were deleted in Airflow" in logged


def test_a_waiting_trigger_ends(states: dict[str, str]) -> None:
    states["c"] = "failed"
    trigger = PointRunsTrigger(dag_id="s.point", run_ids=list(RUNS.values()))

    async def first() -> Any:
        return (await asyncio.wait_for(anext(trigger.wait()), 10)).payload

    assert asyncio.run(first()) == {"ended": 3}
