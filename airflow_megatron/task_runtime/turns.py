"""Taking turns under ``airflow dags test``, which runs one task after another, each to its end.

A task that waits there for what a job writes would wait for ever when that job ends without: the task that would judge
it, and submit its next attempt, has not had its turn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import timezone
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.polling.unjudged import unjudged_stages
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


def turn_deadline(deadline: float | None) -> float | None:
    """Return the Unix time until which a trigger may wait: a deadline, or the end of the turn where there are turns."""
    if not runs_without_scheduler():
        return deadline
    return min(time.time() + TURN_S, deadline if deadline is not None else float("inf"))


def has_time_left(context: Context, timeout: float) -> bool:
    """Return whether a wait that ran out was only a turn.

    :param timeout: seconds that the task may wait in all
    """
    if not runs_without_scheduler():
        return False
    started = context["dag_run"].start_date or timezone.utcnow()
    return time.time() < started.timestamp() + timeout


def pass_turn(stage_dirs: Sequence[str], cluster: ClusterProfile, log: Any) -> None:
    """Let other tasks run first when a job that is waited for has ended and was not judged yet.

    :param stage_dirs: directories of the stages that are waited for
    :raises AirflowRescheduleException: to be run again after them
    """
    hook = SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster))
    try:
        stages = unjudged_stages(stage_dirs, hook.commands, hook.run)
    except TransportError as error:
        log.warning("%s", error)
        return
    if stages:
        log.info("%s has ended; this task yields to its watch task", StageDir(stages[0]).stage)
        raise AirflowRescheduleException(timezone.utcnow())


def stages_of(condition: Condition) -> list[str]:
    """Return the directories of the stages that a condition speaks of."""
    named = [
        leaf.path if leaf.kind in ("finished", "ended") else leaf.producer for leaf in condition.leaves()
    ]
    return [stage_dir for stage_dir in dict.fromkeys(named) if stage_dir]
