"""Any attempt of the job's present run may write the expected line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scripted_poller import ScriptedPoller

from airflow_megatron.slurm.states.observation import Observation
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.triggers.log_pattern import LogPatternTrigger

if TYPE_CHECKING:
    import pytest

LOG = b"attempt 1\n  loss 2.5\n"
"""What is read at first, and what the attempt after it writes too."""


def look(log_size: int, *there: str, ended: int = 0) -> Observation:
    verdict = json.dumps({"outcome": "finished", "attempt": ended})
    return Observation(
        time=100.0,
        queue_ok=True,
        log_size=log_size,
        existing=dict.fromkeys(there, True),
        files={"/r/.jobs/a/verdict.json": verdict} if ended else {},
    )


async def event(
    monkeypatch: pytest.MonkeyPatch, looks: list[Observation], path: str = "/r/logs/a-{attempt}.out"
) -> dict[str, Any]:
    monkeypatch.setattr(ClusterTrigger, "poller", ScriptedPoller(looks, LOG))
    trigger = LogPatternTrigger(
        ssh_conn_id="ssh", commands={}, producer_dir="/r/.jobs/a", log_file=path, pattern="loss [0-9]"
    )
    return dict((await anext(aiter(trigger.wait()))).payload)


async def test_the_line_of_a_later_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    second = look(10, "/r/logs/a-2.out")
    found = await event(monkeypatch, [look(10), second, look(len(LOG), ended=2)])
    assert found == {"status": "found", "line": "loss 2.5"}


async def test_a_job_that_ended_without_the_line_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = await event(monkeypatch, [look(10), look(10, ended=2)])
    assert missed["status"] == "missed"


async def test_a_file_of_its_own_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    missed = await event(monkeypatch, [look(10, "/r/b-2"), look(10, "/r/b-2", ended=1)], "/r/b-1")
    assert missed["status"] == "missed"
