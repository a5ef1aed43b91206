"""The event of any job can be stored by PostgreSQL: its error would end the triggerer, which watches all jobs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from scripted_poller import ScriptedPoller

from airflow_megatron.slurm.remote.records import ExitRecord, read_object
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.spec.model.conditions import Event
from airflow_megatron.spec.trust.plain_text import LONGEST_LINE, storable
from airflow_megatron.supervision.condition_watch import AttemptConditions
from airflow_megatron.supervision.job_event import JobEvent
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.triggers.log_pattern import LogPatternTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from airflow_megatron.task_runtime.deferring_trigger import DeferringTrigger

LINES = [
    b"CUDA error on node\0 n1",
    b"\0CUDA error on node" + b"\0" * 5000,
    b"CUDA error on node\x1b[2J\xe2\x80\xae\xed\xa0\x80",
    b"CUDA error on node " + b"\x07" * 60_000,
]
EVENT = Event("e", on="log", do="notify", pattern=r"CUDA error on node(?P<node>.*)", message="a\0b")


@pytest.fixture(autouse=True)
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")


def job_trigger(**changes: Any) -> SlurmJobTrigger:
    values: dict[str, Any] = {
        "ssh_conn_id": "ssh",
        "commands": {},
        "job_id": "7",
        "job_name": "s.p.run.a1",
        "attempt_dir": "/r/.jobs/run/1",
        "log_file": "/r/logs/run-1.out",
        "kind": "command",
    }
    return SlurmJobTrigger(**{**values, **changes})


def look(at: float, state: JobState, **changes: Any) -> Observation:
    row = QueueRow("7", "s.p.run.a1", state, ended=at if state.ended else None)
    known = Observation(
        time=at, queue=row, queue_ok=True, accounting_ok=True, accounting_enabled=False, log_size=70_000
    )
    return replace(known, **changes)


async def payload(
    of: DeferringTrigger, looks: list[Observation], log: bytes, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return the event of a trigger, as PostgreSQL would have to take it."""
    monkeypatch.setattr(ClusterTrigger, "poller", ScriptedPoller(looks, log))
    (event,) = [event async for event in of.run()]
    text = json.dumps(event.payload, allow_nan=False, ensure_ascii=False)
    assert "\\u0000" not in text
    text.encode()
    return event.payload


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
async def test_events_of_any_line(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = AttemptConditions(events=(EVENT,)).to_json()
    looks = [look(1000.0 + at, JobState.RUNNING, log_size=len(line) + 1) for at in range(4)]
    found = await payload(job_trigger(conditions=conditions), looks, line + b"\n", monkeypatch)
    (seen,) = JobEvent.from_json({**found, "carry": {"handle": {"attempt": 1}}}).seen or ()
    assert seen.reason.startswith("event 'e' (log: ")
    assert seen.reason.endswith("): a\\x00b")
    assert seen.reason.isprintable()
    assert len(seen.reason) < 10 * LONGEST_LINE
    assert "node" in seen.groups


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("signal", '"a\\u0000"'), ("signal", '"\\ud800"'), ("nodes", '"n\\u0000"'), ("host", '"\\udfff"')),
        *(("started", "-1.7e308"), ("ended", "1.7e308"), ("exit_code", "3"), ("job_id", '"7\\u0000"')),
    ],
)
async def test_ends_with_any_record(key: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"exit_code": 1, "signal": None, "started": -1.7e308, "ended": 1.7e308, key: "@"})
    end = ExitRecord.from_json(read_object(text.replace('"@"', value)))
    now = time.time()
    looks = [look(now + 100 * at, JobState.FAILED, queue=None, exit=end, log_size=0) for at in range(9)]
    found = await payload(job_trigger(), looks, b"", monkeypatch)
    assert found["verdict"]["outcome"] == "failed"


async def test_a_line_that_a_sensor_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = LogPatternTrigger(ssh_conn_id="ssh", commands={}, log_file="/r/log", pattern="ready")
    found = await payload(trigger, [look(1.0, JobState.RUNNING, log_size=9)], b"ready\0a\xff\n", monkeypatch)
    assert found == {"status": "found", "line": "ready\\x00a�"}


@pytest.mark.parametrize("text", ["a\\u0000", "\\ud800", "\\udfffx", "\\ud83d\\ude00"])
def test_texts_of_records_can_be_stored(text: str) -> None:
    value = RecordedVerdict.read(f'{{"outcome": "failed", "reason": "{text}", "{text}": ["{text}"]}}')
    assert value is not None
    assert value.reason.isprintable()
    assert read_object(f'{{"{text}": 1}}'.encode()) == {value.reason: 1}
    value.reason.encode()


def test_other_data_stay_as_they_are() -> None:
    value = {"a": [1, 2.5, True, None, "ü\n\t😀", {"b": "\x1b"}], "c": 10**40}
    assert storable(value) == value
    assert storable((float("nan"), float("-inf"), 1e308)) == [None, None, 1e308]
