"""Listener for runs that a user marks or clears, called in Airflow's own processes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow.listeners import hookimpl
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy.orm import object_session

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.spec.model.dag_names import PLAN, REPORT, RESOLVE, WAIT, is_point_name, sweep_of
from airflow_megatron.spec.trust.plain_text import shown, without_images
from airflow_megatron.task_runtime.run_configuration import sendable
from airflow_megatron.task_runtime.stored_plan import CHANGED, changed_message, pinned_by
from airflow_megatron.ui.preloading import preload, starting_component

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

LONGEST_NOTE: Final = 1000
"""Maximum length of a note in Airflow's database; with PostgreSQL, a longer note would crash the scheduler."""
MARKED = "manually set"
"""Part of the message for a run that a user marked failed (``patch_dag_run_state`` of Airflow's API server)."""

log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Stop the points of a sweep's run that a user has marked failed, in the transaction that marks it.

    If a run fails by itself, because its report or an earlier task failed, its points continue. The stages of a point
    that a user has marked failed are blocked, as those of the stopped points are.
    """
    session = object_session(dag_run)
    if session is None or not _tags(dag_run):
        return
    if MARKED in msg:
        from airflow_megatron.dag_factory.stopped_runs import block_unstarted_of, stop_points_of

        if _is_sweep(dag_run):
            stopped = stop_points_of(dag_run, session)
            log.info("stopped %d points of %s %s", len(stopped), dag_run.dag_id, dag_run.run_id)
        else:
            block_unstarted_of(dag_run, session)
    _note_ended_runs(session, sweep_of(dag_run.dag_id))


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:
    """Let the DAGs of a finished run be rebuilt from the current spec.

    A sweep's run that a user marks failed while the scheduler evaluates it stays failed.
    """
    session = object_session(dag_run)
    if session is None or not _tags(dag_run):
        return
    if _is_sweep(dag_run) and _is_marked_failed(dag_run, session):
        dag_run.set_state(DagRunState.FAILED)
    _note_ended_runs(session, sweep_of(dag_run.dag_id))


@hookimpl
def on_starting(component: object) -> None:
    """Find runs that ended or were deleted before the scheduler started, and import the modules of its forks.

    A run of a version of this package that stored no plans takes its jobs from XComs, so the store of plans must exist
    before the first run of a new Airflow starts.
    """
    starting = starting_component(component)
    preload(starting)
    if starting == "scheduler":
        try:
            PinStore().begin()
        except OSError as error:  # `plan` will fail with it
            log.warning("plans cannot be stored: %s", error)
        from airflow.utils.session import create_session

        with create_session() as session:
            _note_ended_runs(session)


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """Replace values of the configuration that would end Airflow's processes, and create the assets that the tasks will
    announce. Add a note to a cleared run: what has changed since it was planned, and what to clear instead.
    """
    session = object_session(dag_run)
    if session is None or not _tags(dag_run) & {"sweep", "point"}:
        return
    if (conf := sendable(dag_run.conf)) != dag_run.conf:
        dag_run.conf = conf
    _create_assets(dag_run, session)
    if not dag_run.clear_number:
        return
    PinStore().set_ended(*pinned_by(dag_run.dag_id, dag_run.run_id, dag_run.conf or {}), ended=False)
    planner = dag_run.get_task_instance(PLAN if _is_sweep(dag_run) else RESOLVE, session=session)
    planned = planner is not None and planner.state == TaskInstanceState.SUCCESS
    # if the planner was cleared too, the run uses the changed sources
    text = changes_note(dag_run.dag_id, dag_run.run_id, dag_run.conf or {}) if planned else ""
    old = dag_run.note or ""
    text = without_images("\n".join(map(shown, text.split("\n"))))
    new = "\n\n".join(part for part in (old.partition(CHANGED)[0].strip(), text) if part)
    if len(new) > LONGEST_NOTE:
        new = f"{new[: LONGEST_NOTE - 1]}…"
    if new != old:
        dag_run.note = new


def _create_assets(dag_run: DagRun, session: Session) -> None:
    """Create the assets of a run, none of a point whose name is impossible: ``resolve`` will refuse it."""
    from airflow_megatron.dag_factory.announced_assets import create_announced_assets

    point = ""
    if not _is_sweep(dag_run):
        given = (dag_run.conf or {}).get("point")
        if not is_point_name(given):
            return
        point = given
    if dag_run.dag is None:
        return
    session.flush()
    # an error must not end the scheduler's transaction, which prohibits commits, those of nested sessions too
    with session.connection().begin_nested():
        create_announced_assets(dag_run.dag, point, session)


def changes_note(dag_id: str, run_id: str, conf: Mapping[str, Any]) -> str:
    """Return the part of a run's note that describes changed sources; empty if nothing has changed.

    :param conf: the run's configuration
    """
    store, sweep = PinStore(), sweep_of(dag_id)
    digest = store.newest(*pinned_by(dag_id, run_id, conf))
    try:
        changed = PinnedSweep.read(digest, store).changes() if digest else []
    except PinError as error:
        return f"{CHANGED}? {error}"
    return changed_message(changed, sweep, dag_id, conf.get("run")) if changed else ""


def _is_marked_failed(dag_run: DagRun, session: Session) -> bool:
    """Return whether tasks have ended as after *Mark failed* by a user: ``wait`` failed, ``report`` skipped.

    On SQLite, which does not lock rows, the scheduler may overwrite the state with which a run was marked.
    """
    states = [
        task.state if (task := dag_run.get_task_instance(name, session=session)) else None
        for name in (WAIT, REPORT)
    ]
    return states == [TaskInstanceState.FAILED, TaskInstanceState.SKIPPED]


def _note_ended_runs(session: Session, sweep: str | None = None) -> None:
    from airflow_megatron.dag_factory.ended_runs import note_ended_runs

    note_ended_runs(session, sweep)


def _is_sweep(dag_run: DagRun) -> bool:
    # a spec may give the tag to the DAG of its points, too
    return "sweep" in _tags(dag_run) and sweep_of(dag_run.dag_id) == dag_run.dag_id


def _tags(dag_run: DagRun) -> set[str]:
    """Return the tags of a run's DAG, none for a DAG that is not part of a sweep."""
    tags = {tag.name for tag in dag_run.dag_model.tags} if dag_run.dag_model else set()
    return tags if "megatron" in tags else set()
