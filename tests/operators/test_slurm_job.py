"""SlurmJobOperator, SlurmSubmitOperator and SlurmJobSensor in DAGs of users, without a cluster."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.slurm_job import SlurmJobOperator
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.plan.described_job import DescriptionError
from airflow_megatron.sensors.log import LogSensor
from airflow_megatron.sensors.slurm_job import SlurmJobSensor
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError
from airflow_megatron.triggers.pause import PauseTrigger


class Store(dict[str, Any]):
    """A stub of a task's state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def context(**changes: Any) -> Any:
    instance = SimpleNamespace(
        dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0, **changes
    )
    return {"ti": instance, "task": SimpleNamespace(retries=0), "task_state_store": Store()}


def test_arguments_of_the_dag_reach_them() -> None:
    defaults = {"slurm_conn_id": "alps", "partition": "long", "time": "1h"}
    with DAG("d", schedule=None, default_args=defaults):
        tasks = [
            SlurmJobOperator(task_id="a", command="hostname"),
            SlurmSubmitOperator(task_id="b", command="hostname", time="2h"),
        ]
    assert [(task.slurm_conn_id, task.partition, task.time) for task in tasks] == [
        ("alps", "long", "1h"),
        ("alps", "long", "2h"),
    ]


def test_a_dag_of_them_is_stored_and_mapped() -> None:
    with DAG("d", schedule=None) as dag:
        SlurmJobOperator.partial(task_id="a", slurm_conn_id="alps", nodes=2).expand(command=["x", "y"])
        submit = SlurmSubmitOperator(task_id="b", script="#!/bin/sh\nhostname")
        SlurmJobSensor(task_id="c", submission=submit.output)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert stored.get_task("c").upstream_task_ids == {"b"}


@pytest.mark.parametrize(
    ("task_class", "arguments"),
    [
        (SlurmJobOperator, {"command": "x", "timeout": "5m"}),
        (SlurmJobSensor, {"submission": {}, "timeout": timedelta(minutes=5)}),
        (SlurmSubmitOperator, {"command": "x"}),
        (LogSensor, {"path": "/x", "pattern": "x", "timeout": timedelta(minutes=5)}),
    ],
)
def test_triggers_get_times_in_seconds(task_class: type[Any], arguments: dict[str, Any]) -> None:
    task = task_class(task_id="a", poll_interval=timedelta(seconds=2), **arguments)
    assert task.poll_interval == 2
    assert getattr(task, "timeout", 300) == 300
    with pytest.raises(DescriptionError, match="poll_interval is 'often'; write seconds"):
        task_class(task_id="b", poll_interval="often", **arguments)


def test_an_unknown_restart_policy_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(DescriptionError, match="restart: retries"):
        SlurmJobOperator(task_id="a", command="x", restart={"retries": 1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slurm_conn_id": "a", "ssh_conn_id": "b"}, "give one of slurm_conn_id, ssh_conn_id and cluster"),
        ({"slurm_conn_id": "a", "cluster": "local"}, "give one of slurm_conn_id, ssh_conn_id and cluster"),
        ({"cluster": "lokal"}, "did you mean 'local'"),
        ({"cluster": "local", "nodes": "many"}, "nodes is 'many'; write a whole number"),
        ({"cluster": "local", "options": ["--wrap=x"]}, "which a job may not set"),
    ],
)
def test_an_impossible_submission_fails_at_once(arguments: dict[str, Any], message: str) -> None:
    for operator in (SlurmJobOperator, SlurmSubmitOperator):
        task = operator(task_id="t", command="hostname", **arguments)
        with pytest.raises(AirflowFailException) as caught:
            task.execute(context())
        assert message in str(caught.value)


@pytest.mark.parametrize("command", ["", "   ", []])
def test_a_command_that_turns_out_empty_fails_both(command: Any) -> None:
    for operator in (SlurmJobOperator, SlurmSubmitOperator):
        with pytest.raises(AirflowFailException, match="give either command or script"):
            operator(task_id="t", cluster="local", command=command).execute(context())


def test_a_connection_that_does_not_exist_fails_both_without_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def work_dir(hook: SlurmHook) -> str:
        raise LoginRefusedError("there is no Airflow connection 'nope'")

    monkeypatch.setattr(SlurmHook, "work_dir", work_dir)
    for operator in (SlurmJobOperator, SlurmSubmitOperator):
        with pytest.raises(AirflowFailException, match="no Airflow connection 'nope'"):
            operator(task_id="t", slurm_conn_id="nope", command="hostname").execute(context())


def test_a_mapped_task_has_a_job_of_its_own() -> None:
    task = SlurmJobOperator(task_id="t", cluster="local", command="hostname")
    jobs = []
    for index in (-1, 0, 1):
        given = context()
        given["ti"].map_index = index
        jobs.append(task.described_job(given))
    assert len({job.run_dir for job in jobs}) == 3
    assert [job.name for job in jobs] == ["d.t", "d.t.0", "d.t.1"]


def test_the_sensor_names_what_it_needs() -> None:
    with pytest.raises(AirflowFailException, match=r"pass submit\.output"):
        SlurmJobSensor(task_id="t", submission={"job_id": "7"}).execute(context())


@pytest.mark.parametrize("operator", [SlurmJobOperator, SlurmSubmitOperator])
def test_a_login_that_is_refused_while_the_job_is_described_is_waited_for(
    operator: type[SlurmJobOperator | SlurmSubmitOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work_dir(hook: SlurmHook) -> str:
        raise LoginExpiredError("login refused since today")

    monkeypatch.setattr(SlurmHook, "work_dir", work_dir)
    task = operator(task_id="t", command="hostname", slurm_conn_id="alps")
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    assert isinstance(deferred.value.trigger, PauseTrigger)
    assert callable(getattr(task, deferred.value.method_name))
