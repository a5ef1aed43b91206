"""Query Airflow for active runs of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_megatron.plan.pins.runs_in_flight import outlines_in_flight, rewired, too_many_in_flight
from airflow_megatron.spec.model.dag_names import point_dag_id

if TYPE_CHECKING:
    from airflow_megatron.plan.pins.pin_store import PinStore
    from airflow_megatron.spec.model.outline import SweepOutline

UNDER_WAY: Final = ("queued", "running")


def is_known(dag_id: str, run_id: str) -> bool:
    """Return whether a run exists in Airflow; True if Airflow does not answer."""
    return _count(dag_id, run_id) != 0


def is_under_way(sweep: str, run_id: str) -> bool:
    """Return whether a run of a sweep or of one of its points is active; True if Airflow does not answer.

    A sweep's run that has ended may have active points.
    """
    points = point_dag_id(sweep)
    if _count(sweep, run_id) != 0:
        return _count(sweep, run_id, UNDER_WAY) != 0 or _count(points, None, UNDER_WAY) != 0
    return _count(points, run_id, UNDER_WAY) != 0


def refuse_rewired(sweep: SweepOutline, run_id: str, store: PinStore) -> None:
    """Refuse to plan a sweep if an active run has its stages in another order.

    Airflow has one DAG for both, so the new order would change the active run.

    :param sweep: the sweep of the current spec
    :param run_id: the run that plans it
    :raises AirflowFailException: with the run and the stage
    """
    for run, stage in rewired(sweep, run_id, store):
        if is_under_way(sweep.name, run):
            raise AirflowFailException(
                f"{sweep.file} starts the stage {stage!r} otherwise than run {run} does, which is under way: wait "
                "for its end, stop it, or give the stage or the sweep another name"
            )
        _set_ended(sweep.name, run, store)


def refuse_too_many_stages(sweep: SweepOutline, store: PinStore) -> None:
    """Refuse to plan a sweep if its DAGs would have too many stages, with those of the runs in progress.

    :param sweep: the sweep of the current spec
    :raises AirflowFailException: with what to do
    """
    if not too_many_in_flight(sweep, store):
        return
    for run in {run for run, _ in outlines_in_flight(sweep.name, store)}:
        if not is_under_way(sweep.name, run):
            _set_ended(sweep.name, run, store)
    if too_many_in_flight(sweep, store):
        raise AirflowFailException(
            f"the runs of {sweep.name} in progress have been planned with so many different stages that another plan "
            "would make its DAG too large: wait for their end or stop them, or give the sweep another name"
        )


def _set_ended(sweep: str, run_id: str, store: PinStore) -> None:
    """Record the end of a run, of the sweep or of one of its points, that Airflow has not reported."""
    for dag_id in (sweep, point_dag_id(sweep)):
        store.set_ended(dag_id, run_id)


def _count(dag_id: str, run_id: str | None, states: tuple[str, ...] = ()) -> int | None:
    """Return the number of runs, or None if Airflow does not answer."""
    try:
        return RuntimeTaskInstance.get_dr_count(
            dag_id=dag_id, run_ids=[run_id] if run_id else None, states=list(states) or None
        )
    except (AttributeError, AirflowRuntimeError):
        return None
