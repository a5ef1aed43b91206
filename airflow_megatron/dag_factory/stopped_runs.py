"""Stop the runs of a sweep's points in Airflow's database, like *Mark failed* in the web page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import select

from airflow_megatron.spec.model.dag_names import LAUNCH, point_dag_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.serialization.definitions.dag import SerializedDAG
    from sqlalchemy.orm import Session


def stop_runs(dag_id: str, session: Session, wanted: Callable[[DagRun], bool]) -> list[str]:
    """Mark the queued and running runs of a DAG failed; return their ids.

    Their tasks end as when a user marks the run: triggers cancel the jobs for which they wait, and teardowns cancel
    other jobs in Slurm's queue.

    :param session: session of Airflow's database
    :param wanted: returns whether to stop a run
    """
    under_way = select(DagRun).where(
        DagRun.dag_id == dag_id, DagRun.state.in_([DagRunState.QUEUED, DagRunState.RUNNING])
    )
    runs = [run for run in session.scalars(under_way).all() if wanted(run)]
    dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session) if runs else None
    for run in runs:
        queued = run.state == DagRunState.QUEUED
        if dag is not None:
            set_dag_run_state_to_failed(dag=dag, run_id=run.run_id, commit=True, session=session)
            block_unstarted(run, dag, session)
        if queued or dag is None:  # none of its tasks has started, so no teardown is needed
            run.set_state(DagRunState.FAILED)
    return [run.run_id for run in runs]


def block_unstarted(run: DagRun, dag: SerializedDAG, session: Session) -> None:
    """Set the tasks that *Mark failed* skipped because they had not started to ``upstream_failed``, as after a failure.

    If they stayed skipped, a run whose last tasks had not started would end as a success after its teardowns, and
    *Clear failed tasks* would leave them out. Tasks that were skipped before, and those below them, stay skipped.

    :param run: a run that has been marked failed
    :param dag: its DAG
    :param session: session of Airflow's database
    """
    skipped = [
        task
        for task in run.get_task_instances(state=[TaskInstanceState.SKIPPED], session=session)
        if task.task_id in dag.task_dict
    ]
    stays = set()
    for task in skipped:
        if task.start_date != task.end_date:  # Airflow sets both at once for a task that has not started
            stays |= {task.task_id} | dag.task_dict[task.task_id].get_flat_relative_ids(upstream=False)
    for task in skipped:
        if task.task_id not in stays:
            task.state = TaskInstanceState.UPSTREAM_FAILED


def block_unstarted_of(run: DagRun, session: Session) -> None:
    """Do as :func:`block_unstarted`, with the DAG from Airflow's database."""
    dag = DBDagBag().get_latest_version_of_dag(run.dag_id, session=session)
    if dag is not None:
        block_unstarted(run, dag, session)


def awaited_runs(run: DagRun, session: Session) -> set[str]:
    """Return the ids of the point runs that a sweep's run has launched or waits for, as its task `launch` wrote them.

    :param run: the sweep's run
    """
    launch = run.get_task_instance(LAUNCH, session=session)
    written: Any = launch.xcom_pull(task_ids=LAUNCH, session=session) if launch else None
    ids = written.values() if isinstance(written, dict) else ()
    return {run_id for run_id in ids if isinstance(run_id, str)}


def stop_points_of(run: DagRun, session: Session) -> list[str]:
    """Mark the point runs failed that a sweep's run has launched or waits for; return their ids.

    :param run: the sweep's run
    """
    ids = awaited_runs(run, session)
    return stop_runs(
        point_dag_id(run.dag_id),
        session,
        lambda point: point.run_id in ids or (point.conf or {}).get("run") == run.run_id,
    )
