"""Find the runs with a pin that have ended, in Airflow's database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.models.dagrun import DagRun
from airflow.utils.state import DagRunState
from sqlalchemy import select

from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.spec.model.dag_names import point_dag_id, sweep_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def note_ended_runs(session: Session) -> None:
    """Note which of the runs that have pinned something have ended, with all points of theirs, or have gone."""
    session.flush()  # Airflow's sessions do it at their end: the run that has just ended would seem to go on
    store = PinStore()
    for dag_id in store.dags():
        for noted in store.noted_runs(dag_id):
            if not noted.ended and not _is_under_way(dag_id, noted.run_id, session):
                store.set_ended(dag_id, noted.run_id)


def _is_under_way(dag_id: str, run_id: str, session: Session) -> bool:
    under_way = (
        select(DagRun.run_id).where(DagRun.state.in_([DagRunState.QUEUED, DagRunState.RUNNING])).limit(1)
    )
    if session.scalar(under_way.where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)) is not None:
        return True
    # a sweep's run that has failed by itself leaves its points to go on
    points = under_way.where(DagRun.dag_id == point_dag_id(dag_id))
    return dag_id == sweep_of(dag_id) and session.scalar(points) is not None
