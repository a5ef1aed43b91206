"""A verdict that cannot be written, because the run root is full."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from example_specs import CHAIN

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators import slurm_watch
from airflow_megatron.operators.slurm_watch import WRITE_PAUSE_S, SlurmWatchOperator
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.verdicts.stage_records import RemoteWriteError
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.job_event import JobEvent
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from airflow_megatron.notices.notice import Notice
    from airflow_megatron.spec.model.jobs import Job


def here(hook: SlurmHook, script: str, **options: Any) -> CommandResult:
    """Run a script on this machine, in place of the login node."""
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Notice]:
    notices: list[Notice] = []
    monkeypatch.setattr(slurm_watch, "send", lambda sections, notice: notices.append(notice))
    return notices


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path))
    monkeypatch.setattr(SlurmHook, "run", here)
    job = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]
    Path(job.stage_dir).mkdir(parents=True)
    (Path(job.stage_dir) / "1").write_text("")  # a file at the path of the attempt's directory
    return job


def resumed(task: SlurmWatchOperator, method: str, event: dict[str, Any]) -> TaskDeferred:
    context: Any = {"task": task}
    with set_current_context(context), pytest.raises(TaskDeferred) as deferred:
        getattr(task, method)(context, event)
    return deferred.value


def ended(job: Job, **values: Any) -> dict[str, Any]:
    handle = JobHandle(job.name, 1, "7")
    verdict = Verdict(Outcome.FAILED, "exit code 1", job_id="7", **values)
    return JobEvent(verdict, seen=(), watched=handle).to_json()


@pytest.mark.slow
def test_the_task_waits_until_it_can_be_written(job: Job, sent: list[Notice]) -> None:
    task = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=None, poll_interval=7)
    first = resumed(task, "execute_complete", ended(job))
    assert isinstance(first.trigger, PauseTrigger)
    assert first.trigger.until - time.time() < 7 * 1.25
    assert not sent  # may be over in a moment
    second = resumed(task, first.method_name, first.trigger.carry)
    assert isinstance(second.trigger, PauseTrigger)
    assert second.trigger.until - time.time() > 0.7 * WRITE_PAUSE_S
    (notice,) = sent
    assert notice.what == "health"
    assert f"the verdict cannot be written below {job.stage_dir}" in notice.reason
    assert "make space there" in notice.reason
    third = resumed(task, second.method_name, second.trigger.carry)
    assert isinstance(third.trigger, PauseTrigger)
    assert len(sent) == 1
    (Path(job.stage_dir) / "1").unlink()
    context: Any = {"task": task}
    with set_current_context(context), pytest.raises((AirflowFailException, TaskDeferred)):
        task.record_again(context, third.trigger.carry)
    assert '"outcome": "failed"' in (Path(job.stage_dir) / "1" / "verdict.json").read_text()
    assert [notice.what for notice in sent][1:] in (["failure"], ["retry"])


def test_a_job_that_is_to_be_stopped_is_left_to_the_next_try(job: Job, sent: list[Notice]) -> None:
    task = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=None)
    context: Any = {"task": task}
    with set_current_context(context), pytest.raises(RemoteWriteError):
        task.execute_complete(context, ended(job, stopped=True))
    assert not sent
