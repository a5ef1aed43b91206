"""Jobs without a waiting task: cancelled when their run ends, replaced when the waiting task is cleared."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from driven_job import first_event
from patience import deadline_in

from airflow_megatron.operators.slurm_submit import job_attempts
from airflow_megatron.operators.slurm_watch import WAITED_FOR, SlurmWatchOperator
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import JobAttempts, next_attempt
from airflow_megatron.supervision.job_event import JobEvent
from airflow_megatron.supervision.job_reference import JobHandle

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

SPEC = """\
name: left
point: p
slurm: {mem: 100M}
stages:
  one: {kind: command, command: [sleep, 300]}
  other: {kind: command, command: [sleep, 300]}
  short: {kind: command, command: ["true"]}
"""


class Store(dict[str, Any]):
    """A stub of a task's state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


@pytest.fixture
def jobs(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, JobAttempts]:
    """The jobs of a point, accessed through the hook."""
    server = cluster.description["ssh"]
    extra = {"key_file": server["key_file"], "host_key": server["host_key"]}
    uri = {"conn_type": "ssh", "host": server["host"], "port": server["port"], "login": server["user"]}
    monkeypatch.setenv("AIRFLOW_CONN_SLURM_LOCAL", json.dumps({**uri, "extra": extra}))
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path))
    plan = plan_sweep(load_sweep_text(SPEC, "left.yaml"), load_cluster("local"))
    return {job.stage: job_attempts(job, None) for job in plan.jobs}


def state(cluster: SlurmCluster, job_id: str | None, wanted: str) -> str:
    """Return the state of a job; wait some time for the expected state."""
    deadline = deadline_in(60)
    while True:
        found = cluster.slurm("squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T")
        if found == wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.3)


def test_a_job_left_behind_is_cancelled_alone_and_the_next_run_begins_another(
    cluster: SlurmCluster, jobs: dict[str, JobAttempts]
) -> None:
    one, other, short = (jobs[stage].submit(1).job_id for stage in ("one", "other", "short"))
    assert state(cluster, short, "COMPLETED") == "COMPLETED"
    assert jobs["one"].withdraw()
    assert not jobs["one"].withdraw()
    assert not jobs["short"].withdraw()
    assert state(cluster, one, "CANCELLED") == "CANCELLED"
    assert state(cluster, other, "RUNNING") in ("RUNNING", "PENDING")
    number = next_attempt(jobs["one"].state(), rerun=False, digest=job_digest(jobs["one"].job)).number
    assert number == 2
    jobs["other"].withdraw()


def test_a_wait_that_is_cleared_replaces_its_job(cluster: SlurmCluster, jobs: dict[str, JobAttempts]) -> None:
    attempts = jobs["one"]
    first = attempts.submit(1).job_id
    handle = {"job": attempts.job.name, "attempt": 1, "job_id": first, "finished": False}
    task = SlurmWatchOperator(task_id="watch", job=attempts.job.to_json(), handle=handle)
    store = Store()

    def follow(*, try_number: int, max_tries: int, event: JobEvent | None = None) -> dict[str, Any]:
        instance = SimpleNamespace(
            dag_id="sweep", run_id="one", task_id="watch", try_number=try_number, max_tries=max_tries
        )
        run = SimpleNamespace(conf={})
        context: Any = {"ti": instance, "dag_run": run, "task": task, "task_state_store": store}
        step, arguments = task.execute, {}
        if event is not None:
            step, arguments = task.execute_complete, {"event": event.to_json()}
        while True:
            with set_current_context(context), pytest.raises(TaskDeferred) as caught:
                step(context, **arguments)
            deferred = caught.value
            followed = dict(deferred.trigger.serialize()[1])
            if "job_id" in followed:
                return followed
            # the cancelled job has not ended yet, so the next attempt waits
            step = getattr(task, deferred.method_name)
            arguments = {"event": asyncio.run(first_event(deferred.trigger))}

    assert follow(try_number=1, max_tries=0)["job_id"] == first
    assert store == {WAITED_FOR: 1}
    # if the worker died, Airflow's next try of the task continues to wait
    assert follow(try_number=2, max_tries=2)["job_id"] == first
    second = follow(try_number=2, max_tries=1)["job_id"]
    assert second != first
    assert state(cluster, first, "CANCELLED") == "CANCELLED"
    # the end of another job, which reaches this task by mistake, is no second clearing
    other = JobEvent(
        Verdict(Outcome.FAILED, "exit code 1"), seen=(), watched=JobHandle("other.p.work", 1, "7")
    )
    assert follow(try_number=2, max_tries=1, event=other)["job_id"] == second
    assert attempts.state().latest_attempt == 2
    attempts.withdraw()
    assert state(cluster, second, "CANCELLED") == "CANCELLED"
