"""Task order under ``airflow dags test``, which runs one task at a time until it ends.

A task that waits for the output of a job would wait forever if an attempt ends without it: the watch task, which judges
the attempt and submits the next one, cannot run in the meantime. The waiting task therefore yields to it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.polling.jobs_without_verdict import stages_without_verdict
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.layout.run_layout import StageDir
from airflow_megatron.supervision.attempts import slurm_commands
from airflow_megatron.task_runtime.point_runs import runs_without_scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.conditions import Condition

TURN_S = 20.0


def serial_deadline(deadline: float | None) -> float | None:
    """Return the Unix time until which a trigger may wait: its deadline, or under ``dags test`` an earlier time."""
    if not runs_without_scheduler():
        return deadline
    return min(time.time() + TURN_S, deadline if deadline is not None else float("inf"))


def has_time_left(context: Context, timeout: float) -> bool:
    """Return whether the task may wait again after its trigger timed out.

    :param timeout: total time in seconds that the task may wait
    """
    if not runs_without_scheduler():
        return False
    started = context["dag_run"].start_date or timezone.utcnow()
    return time.time() < started.timestamp() + timeout


def yield_to_watch_tasks(stage_dirs: Sequence[str], cluster: ClusterProfile, log: Any) -> None:
    """Let the watch tasks run first if a job that this task waits for has ended without a verdict.

    :param stage_dirs: directories of the stages that this task waits for
    :raises AirflowRescheduleException: to run this task again after them
    """
    hook = SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster))
    try:
        stages = stages_without_verdict(stage_dirs, hook.commands, hook.run)
    except TransportError as error:
        log.warning("%s", error)
        return
    if stages:
        log.info("%s has ended; this task yields to its watch task", StageDir(stages[0]).stage)
        raise AirflowRescheduleException(timezone.utcnow())


def stages_of(condition: Condition) -> list[str]:
    """Return the directories of the stages that a condition refers to."""
    named = [
        leaf.path if leaf.kind in ("finished", "ended") else leaf.producer for leaf in condition.leaves()
    ]
    return [stage_dir for stage_dir in dict.fromkeys(named) if stage_dir]
