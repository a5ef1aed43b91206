"""Find the runs with a pin that have ended, in Airflow's database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.models.dagrun import DagRun
from airflow.utils.state import DagRunState
from sqlalchemy import select

from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.spec.model.dag_names import point_dag_id, sweep_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


def note_ended_runs(session: Session, sweep: str | None = None) -> None:
    """Record which of the runs with a pin have ended, with all their points, or were deleted.

    It sends two queries for each DAG with such runs, and reads only their records, because a sweep may have thousands
    of ended runs.

    :param sweep: the sweep whose runs are checked; default: all sweeps
    """
    # Airflow's sessions flush at their end; before that, the run that has just ended would appear active
    session.flush()
    store = PinStore()
    for dag_id in store.dags() if sweep is None else (sweep, point_dag_id(sweep)):
        noted = [run.run_id for run in store.under_way(dag_id)]
        if not noted:
            continue
        still = _active_runs(dag_id, noted, session)
        for run_id in noted:
            if run_id not in still:
                store.set_ended(dag_id, run_id)


def _active_runs(dag_id: str, run_ids: Sequence[str], session: Session) -> set[str]:
    """Return the runs that are active; if a sweep's run fails by itself, its points continue."""
    states = DagRun.state.in_([DagRunState.QUEUED, DagRunState.RUNNING])
    points = select(DagRun.run_id).where(states, DagRun.dag_id == point_dag_id(dag_id)).limit(1)
    if dag_id == sweep_of(dag_id) and session.scalar(points) is not None:
        return set(run_ids)
    own = select(DagRun.run_id).where(states, DagRun.dag_id == dag_id)
    return set(session.scalars(own)).intersection(run_ids)
