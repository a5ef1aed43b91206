"""Tasks take turns if they run one after another."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, TaskDeferred

from airflow_megatron.sensors.log import LogSensor
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.task_runtime import serial_execution
from airflow_megatron.task_runtime.serial_execution import (
    TURN_S,
    has_time_left,
    serial_deadline,
    stages_of,
    yield_to_watch_tasks,
)

LOG = logging.getLogger("task")
TIMEOUT = {"status": "timeout", "reason": "no line"}


def context(started_before: float = 0) -> Any:
    start = datetime.now(UTC) - timedelta(seconds=started_before)
    return {"dag_run": SimpleNamespace(start_date=start)}


def sensor() -> LogSensor:
    return LogSensor(
        task_id="c", cluster="local", path="/r/a.out", pattern="x", producer_dir="/r/.jobs/a", timeout=60
    )


@pytest.fixture
def serial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial_execution, "runs_without_scheduler", lambda: True)


@pytest.fixture
def unjudged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages whose jobs have ended; the cluster itself is another test's matter."""
    ended: list[str] = []
    monkeypatch.setattr(
        serial_execution,
        "stages_without_verdict",
        lambda stages, commands, run: [item for item in stages if item in ended],
    )
    return ended


def test_with_a_scheduler_there_are_no_turns() -> None:
    assert serial_deadline(None) is None
    assert serial_deadline(5.0) == 5.0
    assert not has_time_left(context(), 60)
    with pytest.raises(AirflowFailException):
        sensor().execute_complete(context(), TIMEOUT)


@pytest.mark.usefixtures("serial")
def test_a_turn_is_short_and_never_longer_than_the_wait() -> None:
    turn = serial_deadline(None)
    assert turn is not None
    assert turn == pytest.approx(time.time() + TURN_S, abs=5)
    assert serial_deadline(time.time() + 1) == pytest.approx(time.time() + 1, abs=0.5)


@pytest.mark.usefixtures("serial")
def test_a_sensor_waits_on_while_the_job_lives_and_lets_others_judge_it_when_it_has_ended(
    unjudged: list[str],
) -> None:
    with pytest.raises(TaskDeferred):
        sensor().execute_complete(context(), TIMEOUT)
    unjudged.append("/r/.jobs/a")
    with pytest.raises(AirflowRescheduleException):
        sensor().execute_complete(context(), TIMEOUT)
    with pytest.raises(AirflowFailException):
        sensor().execute_complete(context(started_before=61), TIMEOUT)


def test_a_login_node_that_does_not_answer_takes_no_turn_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: Any) -> list[str]:
        raise TransportError("cut")

    monkeypatch.setattr(serial_execution, "stages_without_verdict", cut)
    yield_to_watch_tasks(["/r/.jobs/a"], load_cluster("local"), LOG)


def test_the_stages_of_a_condition() -> None:
    condition = Condition(
        "any",
        parts=(
            Condition("ended", path="/r/.jobs/a"),
            Condition("checkpoint", path="/r/checkpoints", iteration=5, producer="/r/.jobs/b"),
            Condition("not", parts=(Condition("finished", path="/r/.jobs/a"),)),
            Condition("file", path="/r/x"),
        ),
    )
    assert stages_of(condition) == ["/r/.jobs/a", "/r/.jobs/b"]
