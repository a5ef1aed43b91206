"""Deletion of ended runs from Airflow's database, like *Delete* in the web page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.models.dagrun import DagRun
from airflow.utils.state import DagRunState
from sqlalchemy import select

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

ENDED = (DagRunState.SUCCESS, DagRunState.FAILED)


def runs_of(dag_id: str, session: Session, wanted: Callable[[DagRun], bool]) -> dict[str, bool]:
    """Return the runs of a DAG: id → whether it has ended.

    :param session: of Airflow's database
    :param wanted: which of them
    """
    runs = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.run_id))
    return {run.run_id: run.state in ENDED for run in runs if wanted(run)}


def delete_runs(dag_id: str, session: Session, run_ids: list[str]) -> list[str]:
    """Delete runs that have ended, with their tasks and XComs; return the ids of those that were deleted.

    :param session: of Airflow's database
    """
    chosen = select(DagRun).where(
        DagRun.dag_id == dag_id, DagRun.run_id.in_(run_ids), DagRun.state.in_(ENDED)
    )
    runs = list(session.scalars(chosen))
    for run in runs:
        session.delete(run)
    return [run.run_id for run in runs]
