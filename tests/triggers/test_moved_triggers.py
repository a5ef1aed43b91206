"""A trigger that another triggerer takes over is stopped like that of a killed task, and its job must go on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_megatron.triggers import slurm_job
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

TASK = SimpleNamespace(dag_id="s.point", run_id="p", task_id="pretrain.watch", map_index=-1)


def cancelled(monkeypatch: pytest.MonkeyPatch, states: Any, task: Any = TASK) -> list[str]:
    """Stop a trigger and return the ids of the jobs that it cancels."""
    found: list[str] = []

    async def cancel(cancellation: Any, *_: Any, **__: Any) -> bool:
        found.append(cancellation.job_id)
        return True

    def get_task_states(**asked: Any) -> Any:
        assert asked == {
            "dag_id": "s.point",
            "task_ids": ["pretrain.watch"],
            "run_ids": ["p"],
            "map_index": -1,
        }
        if isinstance(states, Exception):
            raise states
        return states

    monkeypatch.setattr(slurm_job, "cancel_killed", cancel)
    monkeypatch.setattr(slurm_job, "trigger_hook", lambda *_: None)
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    trigger = SlurmJobTrigger(
        ssh_conn_id="site",
        commands={},
        job_id="7",
        job_name="s.p.pretrain.a1",
        attempt_dir="/r/s/p/.jobs/pretrain/1",
        log_file="/r/s/p/logs/pretrain-1.out",
        kind="command",
    )
    trigger._task_instance = task
    asyncio.run(trigger.on_kill())
    return found


def test_a_job_goes_on_while_its_task_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cancelled(monkeypatch, {"p": {"pretrain.watch": "deferred"}}) == []


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "scheduled", "running", None])
def test_an_action_of_a_user_cancels_the_job(monkeypatch: pytest.MonkeyPatch, state: str | None) -> None:
    assert cancelled(monkeypatch, {"p": {"pretrain.watch": state}}) == ["7"]


@pytest.mark.parametrize("states", [{}, {"p": {}}, RuntimeError("no answer")])
def test_a_task_without_a_state_is_cancelled(monkeypatch: pytest.MonkeyPatch, states: Any) -> None:
    """Its DAG was deleted, or Airflow does not answer."""
    assert cancelled(monkeypatch, states) == ["7"]


def test_without_a_triggerer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cancelled(monkeypatch, AssertionError(), task=None) == ["7"]
