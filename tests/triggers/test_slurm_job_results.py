"""Triggers store the records that they read, without an effect on verdicts."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from scripted_poller import ScriptedPoller

from airflow_megatron.results.store.reading import Results, load
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.writer import ResultWriter
from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow
from airflow_megatron.spec.documents.configuration import option_variable
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.triggers import slurm_job
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LINE = (
    " [2025-10-11 19:28:56] iteration %8d/     100 | consumed samples: %12d | elapsed time per iteration (ms): 10.0 |"
    " learning rate: 1.0E-03 | global batch size:     4 | lm loss: 1.0E+01 | loss scale: 1.0 | grad norm: 1.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
VALIDATION = " validation loss at iteration 3 | lm loss value: 1.5E+00 | lm loss PPL: 2.0E+00 |\n"
LOG = ("starts\n" + "".join(LINE % (number, 4 * number) for number in range(1, 4)) + VALIDATION).encode()
JOB = {"sweep": "s", "run": "manual__1", "point": "p/1", "stage": "pretrain", "seq_length": 32, "gpus": 8}


def look(state: JobState, size: int, *, at: float = 1000) -> Observation:
    over = state.ended
    return Observation(
        time=at,
        queue=QueueRow("7", "s.p.a.a1", state, node_list="n[1-2]", started=940, ended=1000 if over else None),
        queue_ok=True,
        accounting_ok=True,
        accounting_enabled=False,
        exit=ExitRecord.from_json({"exit_code": 0, "started": 940, "ended": 1000, "job_id": "7"})
        if over
        else None,
        log_size=size,
    )


@pytest.fixture
def end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


LOOKS = [
    replace(look(JobState.PENDING, 0), queue=QueueRow("7", "s.p.a.a1", JobState.PENDING, "Priority")),
    look(JobState.RUNNING, 300, at=1010),
    look(JobState.RUNNING, 300, at=1020),
    look(JobState.COMPLETED, len(LOG), at=1030),
    look(JobState.COMPLETED, len(LOG), at=1040),
    look(JobState.COMPLETED, len(LOG), at=1100),
]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    root = str(tmp_path / "results")
    monkeypatch.setenv(option_variable("results_store"), root)
    yield root
    for writer in ResultWriter._of_process.values():
        writer.close()


def trigger_of(**arguments: Any) -> SlurmJobTrigger:
    return SlurmJobTrigger(
        ssh_conn_id="ssh",
        commands={},
        job_id="7",
        job_name="s.p.a.a1",
        attempt_dir="/r/.jobs/a/1",
        log_file="/r/logs/a-1.out",
        kind="command",
        carry={"handle": {}},
        **arguments,
    )


async def verdict(monkeypatch: pytest.MonkeyPatch, log: bytes = LOG, **arguments: Any) -> dict[str, Any]:
    monkeypatch.setattr(ClusterTrigger, "poller", ScriptedPoller(LOOKS, log))
    trigger = trigger_of(**arguments)
    event = await anext(aiter(trigger.wait()))
    return json.loads(json.dumps(event.payload))["verdict"]


def stored(root: str) -> Results:
    assert ResultWriter.shared().drain(20)
    return load("s", root=root)


async def test_all_that_is_read_is_stored(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await verdict(monkeypatch, results=JOB))["outcome"] == "finished"
    results = stored(root)
    rows = results.iterations
    assert rows["iteration"].to_list() == [1, 2, 3]
    assert rows["consumed_tokens"].to_list() == [128, 256, 384]
    assert rows["offset"].to_list() == [
        LOG.index(b"[2025") - 1 + number * len(LINE % (1, 1)) for number in range(3)
    ]
    assert {*rows["point"], *rows["run"], *rows["job_id"]} == {"p/1", "manual__1", "7"}
    assert results.validations["loss"].to_list() == [1.5]
    assert results.states["state"].to_list() == ["PENDING", "RUNNING", "COMPLETED"]
    assert results.states["reason"].to_list() == ["Priority", "", ""]
    (attempt,) = results.attempts.to_dicts()
    assert attempt["outcome"] == "finished"
    assert attempt["exit_code"] == 0
    assert attempt["node_list"] == "n[1-2]"
    assert attempt["elapsed"] == 60
    assert attempt["gpu_hours"] == pytest.approx(8 / 60)


async def test_what_is_read_again_by_another_trigger_is_stored_once(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await verdict(monkeypatch, results=JOB)
    results = stored(root)
    assert results.iterations["iteration"].to_list() == [1, 2, 3]
    assert results.attempts.height == 1


async def test_a_job_of_no_sweep_is_not_stored(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await verdict(monkeypatch))["outcome"] == "finished"
    assert SegmentStore(root).sweeps() == []


@pytest.mark.parametrize("place", ["file", "unknown", "hangs", "writer"])
async def test_no_verdict_depends_on_the_store(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: threading.Event
) -> None:
    if place == "file":
        (tmp_path / "file").touch()
        monkeypatch.setenv(option_variable("results_store"), str(tmp_path / "file"))
    elif place == "unknown":
        monkeypatch.setenv(option_variable("results_store"), "nosuch://bucket")
    elif place == "hangs":
        monkeypatch.setattr(SegmentStore, "write", lambda *_: end.wait(60))
    else:
        monkeypatch.setattr(ResultWriter, "shared", lambda: 1 / 0)
    began = time.monotonic()
    assert (await verdict(monkeypatch, results=JOB))["outcome"] == "finished"
    assert time.monotonic() - began < 50


async def test_secrets_are_masked(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2hunter2")
    log = LOG.replace(b" loss scale:", b" hunter2hunter2: 1.0 | loss scale:")
    log = log.replace(b"starts", b" successfully loaded checkpoint from /c/hunter2hunter2 at iteration 1")
    looks = [replace(each, log_size=len(log)) if each.log_size == len(LOG) else each for each in LOOKS]
    monkeypatch.setattr("test_slurm_job_results.LOOKS", looks)
    await verdict(monkeypatch, log, results=JOB, secrets={"TOKEN": {"variable": "none"}})
    results = stored(root)
    assert results.iterations.height == 3
    assert results.checkpoints.height == 1
    assert "hunter2" not in f"{results.iterations.to_dicts()} {results.checkpoints.to_dicts()}"


@pytest.mark.parametrize(("seen", "hours"), [(3, 8 * 120 / 3600), (1, None)])
async def test_the_cost_of_a_job_that_a_user_cancels_is_stored(
    seen: int, hours: float | None, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel(*_: Any, cancelled: Callable[[], None], **__: Any) -> bool:
        cancelled()
        return True

    async def ended(_: SlurmJobTrigger) -> bool:
        return False

    monkeypatch.setattr(ClusterTrigger, "poller", ScriptedPoller(LOOKS[:seen], LOG))
    monkeypatch.setattr(SlurmJobTrigger, "task_still_waits", ended)
    monkeypatch.setattr(slurm_job, "trigger_hook", lambda *_: None)
    monkeypatch.setattr(slurm_job, "cancel_killed", cancel)
    monkeypatch.setattr(slurm_job, "time", SimpleNamespace(time=lambda: 1060.0))
    trigger = trigger_of(results=JOB)
    async for _ in trigger.wait():
        pass
    await trigger.on_kill()
    (row,) = stored(root).attempts.to_dicts()
    assert (row["outcome"], row["reason"]) == ("cancelled", "its task was marked or cleared")
    assert row["gpu_hours"] == (None if hours is None else pytest.approx(hours))
    assert row["node_list"] == ("" if hours is None else "n[1-2]")
