"""What Airflow's own processes do when a person marks or clears a sweep's run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl
from sqlalchemy.orm import object_session

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

MARKED = "manually set"
"""In the message of a run that a person has marked (``patch_dag_run_state`` of Airflow's API server)."""

log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Stop the points of a sweep's run that a person has marked failed, within the transaction that marks it.

    A run that fails by itself, because its report or a task before it did, leaves its points to go on.
    """
    session = object_session(dag_run)
    if MARKED not in msg or session is None or not _is_sweep(dag_run):
        return
    from airflow_megatron.dag_factory.stopped_runs import stop_points_of

    stopped = stop_points_of(dag_run, session)
    log.info("stopped %d points of %s %s", len(stopped), dag_run.dag_id, dag_run.run_id)


def _is_sweep(dag_run: DagRun) -> bool:
    tags = {tag.name for tag in dag_run.dag_model.tags} if dag_run.dag_model else set()
    return {"megatron", "sweep"} <= tags
