"""A job of a sweep that the real operators and triggers submit and watch, without Airflow's daemons."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from job_priority import drop_nice

from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.configuration import CLUSTERS_FOLDER, option_variable
from airflow_megatron.spec.documents.project import clusters_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow.sdk import BaseOperator
    from airflow.triggers.base import BaseTrigger
    from slurm_cluster import SlurmCluster

    from airflow_megatron.spec.model.jobs import Job


class TaskInstance:
    """A stub of the task instance in the first try of a task."""

    dag_id, run_id, task_id = "sweep.point", "point", "stage.submit"
    try_number, max_tries = 1, 0


class Store(dict[str, Any]):
    """A stub of the state store of a task."""

    set = dict.__setitem__

    def delete(self, key: str) -> None:
        self.pop(key, None)


class DrivenJob:
    """A job whose triggers run in this process.

    :param spec: the sweep spec
    :param name: name of the job in it
    :param cluster: name of the profile
    """

    def __init__(self, spec: str, name: str, cluster: str = "local") -> None:
        self.job: Job = check_sweep(load_sweep_text(spec, "driven.yaml"), load_cluster(cluster)).job(name)

    def submit(self) -> dict[str, Any]:
        """Return the handle of the attempt."""
        task = SlurmSubmitOperator(task_id="submit", job=self.job.to_json())
        return driven(task)

    def watch(self, handle: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict on the job, after all its attempts."""
        task = SlurmWatchOperator(task_id="watch", job=self.job.to_json(), handle=handle, poll_interval=1.0)
        return driven(task)

    def run(self) -> dict[str, Any]:
        return self.watch(self.submit())


def driven(task: BaseOperator, resumed: Callable[..., Any] | None = None, **arguments: Any) -> dict[str, Any]:
    """Return the result of a task; run its triggers in this process.

    :param resumed: the method that resumes it, called with ``arguments``; default: ``execute``
    """
    context = context_of(task)
    step = resumed or task.execute
    while True:
        try:
            with set_current_context(context):
                return step(context, **arguments)
        except TaskDeferred as deferred:
            step = getattr(task, deferred.method_name)
            arguments = {"event": asyncio.run(first_event(deferred.trigger))}


def context_of(task: BaseOperator) -> Any:
    """Return the context of a task in a run without configuration."""
    run = SimpleNamespace(conf={})
    return {"ti": TaskInstance(), "task": task, "task_state_store": Store(), "dag_run": run}


async def first_event(trigger: BaseTrigger) -> Any:
    events = trigger.wait()
    try:
        return (await anext(events)).payload  # type: ignore[call-overload]
    finally:
        await events.aclose()  # type: ignore[union-attr]


def environment(place: Path, cluster: SlurmCluster) -> dict[str, str]:
    """Return the environment in which the project's profile ``local`` refers to a cluster.

    :param place: folder of the run directories
    """
    ssh = cluster.description["ssh"]
    connection = {
        "conn_type": "ssh",
        "host": ssh["host"],
        "port": ssh["port"],
        "login": ssh["user"],
        "extra": {"key_file": ssh["key_file"], "host_key": ssh["host_key"]},
    }
    clusters = place / "clusters"
    shutil.copytree(clusters_dir(), clusters)
    drop_nice(clusters)
    return {
        "AIRFLOW_MEGATRON_LOCAL": str(place),
        option_variable(CLUSTERS_FOLDER): str(clusters),
        "AIRFLOW_CONN_SLURM_LOCAL": json.dumps(connection),
    }


if __name__ == "__main__":  # a worker's process: the spec, the job's name and its handle on standard input
    given = json.load(sys.stdin)
    DrivenJob(given["spec"], given["name"]).watch(given["handle"])
