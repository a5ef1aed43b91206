"""Events between the last poll of a running job and its end are not lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from scripted_poller import ScriptedPoller

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow
from airflow_megatron.spec.model.conditions import Event
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

FINAL = "/r/final"


def look(
    state: JobState, log: bytes = b"", *, code: int = 0, there: bool = True, at: float = 1000
) -> Observation:
    over = state.ended
    return Observation(
        time=at + 100,
        queue=QueueRow("7", "s.p.a.a1", state, started=at - 60, ended=at if over else None),
        queue_ok=True,
        accounting_ok=True,
        accounting_enabled=False,
        exit=ExitRecord.from_json({"exit_code": code, "started": at - 60, "ended": at, "job_id": "7"})
        if over
        else None,
        existing={FINAL: there},
        log_size=len(log),
    )


async def outcome(
    monkeypatch: pytest.MonkeyPatch,
    looks: list[Observation],
    log: bytes,
    events: list[Event],
    *,
    memory: dict[str, Any] | None = None,
    cancel: dict[str, Any] | None = None,
    finish: dict[str, Any] | None = None,
    required: tuple[str, ...] = (),
    log_from: int = 0,
) -> dict[str, Any]:
    """Return the first event of the trigger."""
    monkeypatch.setattr(ClusterTrigger, "poller", ScriptedPoller(looks, log))
    conditions: dict[str, Any] = {"events": [event.to_json() for event in events]}
    conditions |= {"cancel": cancel, "cancel_text": "c"} if cancel else {}
    conditions |= {"finish": finish} if finish else {}
    trigger = SlurmJobTrigger(
        ssh_conn_id="ssh",
        commands={},
        job_id="7",
        job_name="s.p.a.a1",
        attempt_dir="/r/.jobs/a/1",
        log_file="/r/logs/a-1.out",
        kind="command",
        required_files=required,
        conditions=conditions,
        memory=memory,
        log_from=log_from,
        carry={"handle": {}},
    )
    event = await anext(aiter(trigger.wait()))
    return json.loads(json.dumps(event.payload))


def acted(event: dict[str, Any]) -> list[str]:
    return [item["do"] for item in event["seen"]]


@pytest.mark.parametrize(
    ("on", "pattern"),
    [
        ("log", "exit code 1"),
        ("log", "without an end$"),
        ("state", "^FAILED"),
        ("state", "^RUNNING"),
    ],
)
async def test_a_job_that_ended_before_the_next_look(
    monkeypatch: pytest.MonkeyPatch, on: Any, pattern: str
) -> None:
    log = b"Exited with exit code 1\nlast line without an end"
    looks = [look(JobState.PENDING), look(JobState.FAILED, log, code=1)]
    event = await outcome(monkeypatch, looks, log, [Event("e", on, "restart", pattern=pattern)])
    assert event["verdict"]["outcome"] == "failed"
    assert acted(event) == ["restart"]


async def test_an_event_that_acted_before_the_end_does_not_act_at_the_end_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = b"note\nnote\n"
    memory = {"events": {"acted": {"e": 1}, "state": "RUNNING", "progress": 0}}
    event = await outcome(
        monkeypatch,
        [look(JobState.COMPLETED, log)],
        log,
        [Event("e", "log", "run", pattern="note"), Event("up", "state", "run", pattern="RUNNING")],
        memory=memory,
    )
    assert acted(event) == []


@pytest.mark.parametrize(
    ("log_before", "code", "there", "verdict"),
    [
        (True, 0, True, "finished"),
        (True, 1, True, "finished"),  # its outputs count, not its exit status
        (True, 1, False, "failed"),
        (True, 0, False, "failed"),
        (False, 1, True, "finished"),  # announced at the very end
        (False, 1, False, "failed"),
    ],
)
async def test_finish_follows_the_job_to_its_end(
    monkeypatch: pytest.MonkeyPatch, log_before: bool, code: int, there: bool, verdict: str
) -> None:
    log = b"[after training is done]\n"
    events = [Event("done", "log", "finish", pattern=r"\[after training is done\]")]
    memory = None
    end = look(JobState.FAILED if code else JobState.COMPLETED, log, code=code, there=there)
    if log_before:
        running = await outcome(monkeypatch, [look(JobState.RUNNING, log)], log, events, required=(FINAL,))
        assert acted(running) == ["finish"]
        assert "verdict" not in running
        memory = running["memory"]
    event = await outcome(monkeypatch, [end], log, events, memory=memory, required=(FINAL,))
    assert event["verdict"]["outcome"] == verdict


@pytest.mark.parametrize(("finish", "cancelled"), [(None, True), ({"kind": "file", "path": FINAL}, False)])
async def test_a_cancel_condition_is_asked_once_more_at_the_end(
    monkeypatch: pytest.MonkeyPatch, finish: dict[str, Any] | None, cancelled: bool
) -> None:
    log = b"DIVERGED\n"
    cancel = {
        "kind": "log",
        "path": "/r/logs/a-{attempt}.out",
        "pattern": "DIVERGED",
        "producer": "/r/.jobs/a",
    }
    event = await outcome(
        monkeypatch, [look(JobState.COMPLETED, log)], log, [], cancel=cancel, finish=finish, required=(FINAL,)
    )
    assert ("verdict" not in event) is cancelled
    if cancelled:
        assert acted(event) == ["cancel"]


async def test_a_long_log_is_read_to_its_end_before_the_cancel_condition_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = b"x" * 300_000 + b"\nDIVERGED\n"
    cancel = {
        "kind": "log",
        "path": "/r/logs/a-{attempt}.out",
        "pattern": "DIVERGED",
        "producer": "/r/.jobs/a",
    }
    event = await outcome(monkeypatch, [look(JobState.COMPLETED, log)] * 8, log, [], cancel=cancel)
    assert acted(event) == ["cancel"]


async def test_a_command_that_ends_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    line = (
        " [2026-01-01 00:00:00] iteration {:8d}/    1000 | consumed samples: {:12d} | elapsed time per"
        " iteration (ms): 1000.0 | global batch size:     4 | lm loss: 2.0E+00 |\n"
    )
    log = "".join(line.format(number, 4 * number) for number in range(21, 31)).encode()
    end = replace(look(JobState.TIMEOUT, log, code=143), tracker="20")
    event = await outcome(monkeypatch, [end], log, [], required=(FINAL, "/r/other"))
    assert event["verdict"]["outcome"] == "failed"
    assert event["verdict"]["progress"] == {"began": 21, "reached": 30, "saved": 20, "outputs": [FINAL]}


async def test_an_event_of_an_earlier_attempt_in_the_same_log_is_not_seen_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = b"boom\nfine\n"
    events = [Event("e", "log", "restart", pattern="boom")]
    end = look(JobState.COMPLETED, log)
    assert acted(await outcome(monkeypatch, [end], log, events, log_from=5)) == []
    event = await outcome(monkeypatch, [look(JobState.FAILED, log, code=1)], log, events)
    assert acted(event) == ["restart"]
