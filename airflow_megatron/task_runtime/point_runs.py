"""Start and query runs of a point DAG from inside a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagRunResult, ErrorResponse, GetDagRun, TriggerDagRun

from airflow_megatron.errors import AirflowMegatronError

if TYPE_CHECKING:
    from collections.abc import Mapping

ALREADY_EXISTS = "DAGRUN_ALREADY_EXISTS"


class PointRunError(AirflowMegatronError, RuntimeError):
    """Airflow refused to start a run."""


def point_run_id(point: str, number: int = 1) -> str:
    """Return the id of a point's run: its name, with ``~2`` after it for the second run.

    Airflow allows ``[A-Za-z0-9_.~:+-]`` in a run id. Of the characters of a point's name, only ``=`` is not allowed in
    a run id; a name never contains ``:`` or ``~``.
    """
    name = point.replace("=", ":")
    return name if number == 1 else f"{name}~{number}"


def point_of_run(run_id: str) -> str:
    """Return the point of a run whose id :func:`point_run_id` has made."""
    return run_id.partition("~")[0].replace(":", "=")


def runs_without_scheduler() -> bool:
    """Return whether this task runs inside ``airflow dags test``, where no scheduler starts a triggered run."""
    return type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == "InProcessSupervisorComms"


def trigger_point_run(dag_id: str, run_id: str, conf: Mapping[str, Any]) -> bool:
    """Start a run over the task's connection to Airflow, which TriggerDagRunOperator uses too.

    It sends one message per run (300 runs take 3 s), while separate operators would need a worker start for each run.

    :return: False if a run with that id exists already
    :raises PointRunError: if Airflow refuses for another reason
    """
    answer = task_runner.SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=dict(conf)))
    if isinstance(answer, ErrorResponse):
        if getattr(answer.error, "value", str(answer.error)) == ALREADY_EXISTS:
            return False
        raise PointRunError(f"Airflow did not start {dag_id} {run_id}: {answer.error} {answer.detail}")
    return True


def has_point_run(dag_id: str, run_id: str) -> bool:
    """Return whether there is a run of that id."""
    return bool(task_runner.RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id]))


def point_run(dag_id: str, run_id: str) -> tuple[str, dict[str, Any]]:
    """Return state and configuration of an existing run."""
    answer = task_runner.SUPERVISOR_COMMS.send(GetDagRun(dag_id=dag_id, run_id=run_id))
    if not isinstance(answer, DagRunResult):
        raise PointRunError(f"Airflow does not know {dag_id} {run_id}: {getattr(answer, 'detail', '')}")
    return str(getattr(answer.state, "value", answer.state)), dict(answer.conf or {})
