"""A job that two runs wait for, and that one of them replaces: the tasks of stages with ``scope: sweep``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from example_specs import CHAIN

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators import slurm_submit, slurm_watch
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import attempt_record
from airflow_megatron.supervision.job_event import JobEvent
from airflow_megatron.supervision.job_reference import JobHandle
from airflow_megatron.task_runtime.stored_plan import job_plan_environment
from airflow_megatron.triggers.pause import PauseTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job


def here(hook: SlurmHook, script: str, **options: Any) -> CommandResult:
    """Run a script on this machine, in place of the login node."""
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path))
    monkeypatch.setattr(SlurmHook, "run", here)
    monkeypatch.setattr(slurm_watch, "send", lambda sections, notice: None)
    return plan_sweep(load_sweep_text(CHAIN, "s.yaml"), load_cluster("local")).jobs[0]


class Instance:
    try_number, max_tries, dag_id, run_id, task_id = 1, 2, "chain", "manual__1", "w"


class Store(dict[str, Any]):
    def set(self, key: str, value: Any) -> None:
        self[key] = value


def submitted(job: Job, number: int, **changes: Any) -> None:
    """Write the records of an attempt that was submitted as job 6 + *number*."""
    folder = Path(job.stage_dir) / str(number)
    folder.mkdir(parents=True)
    record = {**attempt_record(job, number), "first": number, **changes}
    (folder / "job.json").write_text(json.dumps(record))
    (folder / "jobid").write_text(f"{6 + number}\n")
    (folder / "created").touch()


def first_attempt_cancelled(job: Job) -> None:
    """Send a task the end of the first attempt."""
    deliver(job, "execute_complete", end_of_first(job))


def end_of_first(job: Job) -> dict[str, Any]:
    handle = JobHandle(job.name, 1, "7")
    verdict = Verdict(Outcome.CANCELLED, "the job ended as CANCELLED (user id 0) [sacct]", job_id="7")
    return JobEvent(verdict, seen=(), watched=handle).to_json()


def deliver(job: Job, method: str, event: dict[str, Any]) -> None:
    handle = JobHandle(job.name, 1, "7").to_json()
    task = SlurmWatchOperator(task_id="w", job=job.to_json(), handle=handle, retries=2)
    context: Any = {"task": task, "ti": Instance(), "task_state_store": Store()}
    with set_current_context(context):
        getattr(task, method)(context, event)


@pytest.mark.slow
def test_the_other_run_waits_for_the_new_attempt(job: Job) -> None:
    submitted(job, 1)
    submitted(job, 2)
    with pytest.raises(TaskDeferred) as deferred:
        first_attempt_cancelled(job)
    trigger = deferred.value.trigger
    assert isinstance(trigger, SlurmJobTrigger)
    assert trigger.job_id == "8"
    assert trigger.attempt_dir == f"{job.stage_dir}/2"
    assert not (Path(job.stage_dir) / "verdict.json").exists()


@pytest.mark.slow
def test_another_command_is_not_waited_for(job: Job) -> None:
    submitted(job, 1)
    submitted(job, 2, digest="0123456789abcdef")
    with pytest.raises(AirflowFailException, match="cancelled and replaced by attempt 2") as error:
        first_attempt_cancelled(job)
    assert "with another command; clear this task" in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_a_queued_restart_is_no_replacement(job: Job, first: int) -> None:
    """An attempt that was queued behind the cancelled one (``restart.chain``) is withdrawn with it."""
    submitted(job, 1)
    submitted(job, 2, first=first)
    with pytest.raises(AirflowFailException, match="attempt 1 cancelled and is not restarted"):
        first_attempt_cancelled(job)


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [True, False])
def test_another_run_has_time_to_replace_what_runs_share(
    job: Job, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cleared task submits the next attempt when the cancelled job has left the queue."""
    environment = job_plan_environment(job)
    for module in (slurm_submit, slurm_watch):
        monkeypatch.setattr(module, "job_plan_environment", lambda job: environment)
    monkeypatch.setattr(slurm_watch, "pinned_outline", lambda context: None)
    shared = msgspec.structs.replace(job, point="", pin="0" * 64)
    submitted(shared, 1)
    with pytest.raises(TaskDeferred) as deferred:
        first_attempt_cancelled(shared)
    pause = deferred.value.trigger
    assert isinstance(pause, PauseTrigger)
    assert not (Path(job.stage_dir) / "1" / "verdict.json").exists()
    if replaced:
        submitted(shared, 2)
    expected = TaskDeferred if replaced else AirflowFailException
    with pytest.raises(expected) as ended:
        deliver(shared, deferred.value.method_name, dict(pause.carry or {}))
    if replaced:
        assert ended.value.trigger.job_id == "8"  # type: ignore[attr-defined]
    assert (Path(job.stage_dir) / "1" / "verdict.json").exists() is not replaced
