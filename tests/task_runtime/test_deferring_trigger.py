"""Events of triggers: sent only after the scheduler knows that the worker has ended, and accepted by their own task."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferred

from airflow_megatron import operators, sensors
from airflow_megatron.operators.cancel_left import CancelLeftJobsOperator
from airflow_megatron.operators.described_job import JOB_RECORD, DescribedJobOperator
from airflow_megatron.operators.push_records import PushRecordsOperator
from airflow_megatron.operators.resolve_point import ResolvePointOperator
from airflow_megatron.operators.slurm_job import SlurmJobOperator
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.operators.submit_arrays import SubmitArraysOperator
from airflow_megatron.sensors.checkpoint import CheckpointSensor
from airflow_megatron.sensors.condition import StartConditionSensor
from airflow_megatron.sensors.log import LogSensor
from airflow_megatron.sensors.point_runs import PointRunsSensor
from airflow_megatron.sensors.produced_file import ProducedFileSensor
from airflow_megatron.sensors.slurm_job import SlurmJobSensor
from airflow_megatron.task_runtime import deferring_trigger
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from airflow.triggers.base import TriggerEvent


@pytest.fixture(autouse=True)
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "1")


async def events(trigger: PauseTrigger) -> tuple[list[object], float]:
    began = time.monotonic()
    payloads = [event.payload async for event in trigger.run()]
    return payloads, time.monotonic() - began


@pytest.mark.slow
async def test_an_event_that_is_there_at_once_is_held_back() -> None:
    payloads, seconds = await events(PauseTrigger(until=0, carry={"number": 2}))
    assert payloads == [{"number": 2}]
    assert seconds >= 1.4


@pytest.mark.slow
async def test_a_later_event_is_not_delayed() -> None:
    wait = 2.0
    payloads, seconds = await events(PauseTrigger(until=time.time() + wait))
    assert payloads == [{}]
    assert seconds < wait + 1


@pytest.mark.slow
async def test_closing_ends_the_wait() -> None:
    trigger = PauseTrigger(until=0)
    ended = []

    async def wait() -> AsyncGenerator[TriggerEvent]:
        try:
            async for event in PauseTrigger.wait(trigger):
                yield event
        finally:
            ended.append(True)

    trigger.wait = wait  # type: ignore[method-assign]
    running = trigger.run()
    await anext(running)
    await running.aclose()  # type: ignore[attr-defined]
    assert ended == [True]


def _deferring() -> dict[str, Callable[[], Any]]:
    job = {"job": {}, "handle": {}}
    return {
        "CheckpointSensor": lambda: CheckpointSensor(task_id="t", path="/r", iteration=1),
        "LogSensor": lambda: LogSensor(task_id="t", path="/r", pattern="x"),
        "ProducedFileSensor": lambda: ProducedFileSensor(task_id="t"),
        "StartConditionSensor": lambda: StartConditionSensor(task_id="t", job=None),
        "PointRunsSensor": lambda: PointRunsSensor(task_id="t", point_dag_id="x.point", runs={}),
        "SlurmJobSensor": lambda: SlurmJobSensor(task_id="t", submission=job),
        "DescribedJobOperator": lambda: DescribedJobOperator(task_id="t", command="x"),
        "SlurmJobOperator": lambda: SlurmJobOperator(task_id="t", command="x", cluster="local"),
        "SlurmSubmitOperator": lambda: SlurmSubmitOperator(task_id="t", command="x"),
        "SlurmWatchOperator": lambda: SlurmWatchOperator(task_id="t", job=None, handle=None),
        "CancelLeftJobsOperator": lambda: CancelLeftJobsOperator(task_id="t", source="resolve", stages=[]),
        "SubmitArraysOperator": lambda: SubmitArraysOperator(task_id="t", pinned={}),
        "PushRecordsOperator": lambda: PushRecordsOperator(
            task_id="t", pinned={}, point_dag_id="x.point", runs={}
        ),
        "ResolvePointOperator": lambda: ResolvePointOperator(
            task_id="t", spec_file="x.yaml", sweep="x", stages=[]
        ),
    }


DEFERRING = _deferring()
"""Every operator and sensor that defers."""


@pytest.mark.slow
def test_no_class_that_defers_is_forgotten_here() -> None:
    found = set()
    for package in (operators, sensors):
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            classes = [item for item in vars(module).values() if isinstance(item, type)]
            for item in classes:
                if issubclass(item, BaseOperator) and item.__module__ == module.__name__:
                    own = [
                        base for base in item.__mro__ if base.__module__.startswith(f"{package.__name__}.")
                    ]
                    if any("defer(" in inspect.getsource(base) for base in own):
                        assert issubclass(item, DeferringTask), item
                    if issubclass(item, DeferringTask):
                        found.add(item.__name__)
    assert found == set(DEFERRING)


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that resumes a task as Airflow does; its result is the event, or it raises."""
    monkeypatch.setattr(deferring_trigger, "HEARTBEATS_OF_A_WORKER", 0)

    def resume(task: Any, kwargs: dict[str, Any], event: object) -> Any:
        job = SlurmJobOperator(task_id="t", command="x", cluster="local").described_job(context)
        context["task_state_store"] = {JOB_RECORD: job.to_json()}
        monkeypatch.setattr(type(task), "again", lambda self, context, event: event, raising=False)
        monkeypatch.setattr(SlurmJobOperator, "result", lambda self, context, job, ended: ended)
        return task.resume_execution("again", {**kwargs, "event": event}, context)

    instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
    context: dict[str, Any] = {"ti": instance}
    return resume


def deferred(task: Any, **kwargs: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        task.defer(trigger=PauseTrigger(until=7.0, carry={"number": 2}), method_name="again", **kwargs)
    return caught.value


async def event_of(wait: TaskDeferred) -> object:
    trigger: Any = wait.trigger
    return (await anext(trigger.run())).payload


@pytest.mark.parametrize("name", DEFERRING)
async def test_a_task_accepts_the_event_of_its_trigger_only(name: str, resumed: Callable[..., Any]) -> None:
    task = DEFERRING[name]()
    own, foreign = deferred(task), deferred(task)
    again: TaskDeferred = own
    for event in (await event_of(foreign), {"number": 3}, None):
        with pytest.raises(TaskDeferred) as caught:
            resumed(task, again.kwargs, event)
        again = caught.value
        path, arguments = again.trigger.serialize()
        assert path.endswith(".PauseTrigger")
        assert (again.method_name, arguments["until"], arguments["carry"]) == ("again", 7.0, {"number": 2})
    assert resumed(task, json.loads(json.dumps(again.kwargs)), await event_of(again)) == {"number": 2}


@pytest.mark.parametrize("name", DEFERRING)
def test_a_task_that_an_older_version_deferred_continues(name: str, resumed: Callable[..., Any]) -> None:
    assert resumed(DEFERRING[name](), {}, {"number": 2}) == {"number": 2}


async def test_a_task_in_dags_test_which_loses_the_arguments_of_defer_continues(
    resumed: Callable[..., Any],
) -> None:
    task = DEFERRING["SlurmSubmitOperator"]()
    assert resumed(task, {}, await event_of(deferred(task))) == {"number": 2}


def test_a_task_whose_trigger_failed_fails() -> None:
    task = DEFERRING["SlurmSubmitOperator"]()
    kwargs = {**deferred(task).kwargs, "error": "Trigger failure", "traceback": ["x"]}
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", kwargs, {"task_state_store": {}})
