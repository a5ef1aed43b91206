"""The trigger with which a deferred submission waits."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from example_specs import CHAIN

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator, wait_for_room
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.operators.submit_arrays import SubmitArraysOperator
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.single_job import SubmissionOutcome, WaitsFor
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import LimitsSection
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import JobAttempts
from airflow_megatron.triggers.pause import PauseTrigger
from airflow_megatron.triggers.queue_room import QueueRoomTrigger

if TYPE_CHECKING:
    from airflow_megatron.slurm.remote.transport import CommandResult


class TaskInstance:
    """A stub of the task instance in the first try."""

    dag_id, run_id, task_id = "chain.point", "r", "prepare.submit"
    try_number, max_tries = 1, 0


class Store(dict[str, Any]):
    """A stub of a task's state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def attempts(max_jobs: int | None = None, *, of_sweep: str = "") -> JobAttempts:
    cluster = load_cluster("local").model_copy(update={"limits": LimitsSection(max_jobs=max_jobs)})
    job = plan_sweep(load_sweep_text(CHAIN + of_sweep, "s.yaml"), cluster).jobs[0]

    def run(script: str) -> CommandResult:
        raise AssertionError("nothing is asked of the cluster")

    return JobAttempts(job, cluster, run)


@pytest.mark.parametrize(
    ("waits_for", "queued", "refused_at", "recovers"),
    [("room", None, None, False), ("limit", 40, 40, False), ("recovery", None, None, True)],
)
def test_the_trigger_has_the_limits_and_the_reason_of_the_refusal(
    waits_for: WaitsFor, queued: int | None, refused_at: int | None, recovers: bool
) -> None:
    mine = attempts(300, of_sweep="max_jobs: 20\n")
    outcome = SubmissionOutcome("deferred", None, "full", waits_for=waits_for, queued=queued)
    trigger = wait_for_room(mine, 2, outcome, poll_interval=7)
    assert trigger.limits == [[300, ""], [20, "chain."]]
    assert (trigger.refused_at, trigger.recovers) == (refused_at, recovers)
    assert ".a2." in trigger.job_name
    assert trigger.carry["number"] == 2
    assert trigger.commands == mine.commands.to_json()


@pytest.mark.slow
def test_a_returning_task_keeps_its_place_in_the_queue() -> None:
    outcome = SubmissionOutcome("deferred", None, "full", waits_for="room")
    first = wait_for_room(attempts(1), 1, outcome, poll_interval=7)
    assert time.time() - first.since < 5
    again = wait_for_room(attempts(1), 1, outcome, poll_interval=7, since=first.carry["since"])
    assert again.since == first.since


def test_without_limits_there_are_none() -> None:
    assert attempts().limits == ()


@pytest.mark.parametrize("operator", ["submit", "watch", "arrays"])
def test_an_unreachable_login_node_is_waited_for(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance lasts longer than all tries of a task."""

    def away(hook: SlurmHook, script: str) -> CommandResult:
        raise TransportError("login1 cannot be reached")

    monkeypatch.setattr(SlurmHook, "run", away)
    monkeypatch.setattr("airflow_megatron.supervision.attempts.TROUBLE_WINDOW_S", 0)
    job = attempts().job
    task: Any
    if operator == "submit":
        task = SlurmSubmitOperator(task_id="t", job=job.to_json())
    elif operator == "watch":
        task = SlurmWatchOperator(task_id="t", job=job.to_json(), handle={"job": job.name, "attempt": 1})
    else:
        text = CHAIN.replace("  pretrain:\n", "  pretrain:\n    array: true\n")
        pinned = {"file": "s.yaml", "text": text, "cluster": "local", "points": ["lr0.001"]}
        task = SubmitArraysOperator(task_id="t", pinned=pinned)
    run = SimpleNamespace(conf={}, start_date=None)
    context: Any = {"ti": TaskInstance(), "dag_run": run, "task": task, "task_state_store": Store()}
    with set_current_context(context), pytest.raises(TaskDeferred) as deferred:
        task.submit_next(context, {"number": 3}) if operator == "watch" else task.execute(context)
    method, trigger = deferred.value.method_name, deferred.value.trigger
    if operator == "arrays":
        assert isinstance(trigger, PauseTrigger)
    else:
        assert isinstance(trigger, QueueRoomTrigger)
        assert not trigger.recovers  # none was refused, so all continue immediately
        assert (".a3." in trigger.job_name) is (operator == "watch")
    with set_current_context(context), pytest.raises(TaskDeferred):  # it is still away
        getattr(task, method)(context, trigger.carry)
