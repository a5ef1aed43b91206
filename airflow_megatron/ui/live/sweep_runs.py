"""Runs of sweeps, of their points, and the states of their stages, read from Airflow's database."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.types import DagRunType
from sqlalchemy import func, select

from airflow_megatron.dag_factory.stopped_runs import awaited_runs
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.spec.model.dag_names import LAUNCH, RESOLVE, STEPS, is_point_name, point_dag_id
from airflow_megatron.task_runtime.point_runs import point_of_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from sqlalchemy.orm import Session

WAITING: Final = StageState.WAITING.letter
QUEUED: Final = StageState.PENDING.letter
RUNNING: Final = StageState.RUNNING.letter
RESTARTING: Final = StageState.RESTARTING.letter
FINISHED: Final = StageState.FINISHED.letter
FAILED: Final = StageState.FAILED.letter
SKIPPED: Final = StageState.CANCELLED.letter
BLOCKED: Final = StageState.BLOCKED.letter
STATES: Final = {
    **{state.letter: state.value for state in StageState if state is not StageState.ENDED},
    QUEUED: "queued",
}
"""One letter per stage, because a thousand points have tens of thousands of stages."""

_ACTIVE: Final = frozenset({"scheduled", "queued", "running", "deferred", "up_for_reschedule"})
_STEPS: Final = frozenset(STEPS)
_SWEEPS: Final = select(DagTag.dag_id).where(
    DagTag.name == "sweep",
    DagTag.dag_id.in_(select(DagTag.dag_id).where(DagTag.name == "megatron")),
    ~DagTag.dag_id.contains("."),
)
"""The tag ``sweep`` alone may be another project's; a spec may give it to the DAG of its points, too."""
_AT_ONCE: Final = 500
"""Maximum number of values in one ``IN`` of SQL."""


class Run(NamedTuple):
    """A run in Airflow.

    :param run_id: of the run
    :param state: of the run
    :param started: Unix time of its start, None before
    :param ended: Unix time of its end, None before
    :param conf: the configuration of the run
    """

    run_id: str
    state: str
    started: float | None
    ended: float | None
    conf: Mapping[str, Any]

    @property
    def is_active(self) -> bool:
        """Whether it is queued or running."""
        return self.state in ("queued", "running")


def sweep_dags(session: Session) -> list[str]:
    """Return the ids of the DAGs of sweeps."""
    return sorted(session.scalars(_SWEEPS))


def is_sweep(dag_id: str, session: Session) -> bool:
    """Return whether Airflow has a sweep of this name."""
    return session.scalar(_SWEEPS.where(DagTag.dag_id == dag_id)) is not None


def paused_dags(dag_ids: Collection[str], session: Session) -> list[str]:
    """Return which of some DAGs are paused: Airflow starts no further tasks of their runs."""
    query = select(DagModel.dag_id).where(DagModel.dag_id.in_(list(dag_ids)), DagModel.is_paused)
    return sorted(session.scalars(query))


def runs_of(dag_id: str, session: Session, *, limit: int | None = None) -> list[Run]:
    """Return the runs of a DAG, the newest first."""
    query = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(limit)
    return [_run(run) for run in session.scalars(query)]


def run_named(dag_id: str, run_id: str, session: Session) -> Run | None:
    """Return a run of a DAG, None if there is none of that id."""
    found = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    return None if found is None else _run(found)


def deleted_runs(sweep: str, session: Session) -> list[Run]:
    """Return the runs of a sweep that a user has deleted in Airflow while their points go on, in state ``deleted``."""
    active = DagRun.state.in_(["queued", "running"])
    confs = session.scalars(select(DagRun.conf).where(DagRun.dag_id == point_dag_id(sweep), active))
    wanted = {run for conf in confs if isinstance(run := (conf or {}).get("run"), str)}
    query = select(DagRun.run_id).where(DagRun.dag_id == sweep, DagRun.run_id.in_(wanted))
    return [Run(run, "deleted", None, None, {}) for run in sorted(wanted - set(session.scalars(query)))]


def newest_runs(dag_ids: Iterable[str], session: Session) -> dict[str, Run]:
    """Return the newest run of each of some DAGs."""
    newest = select(func.max(DagRun.id)).where(DagRun.dag_id.in_(list(dag_ids))).group_by(DagRun.dag_id)
    return {run.dag_id: _run(run) for run in session.scalars(select(DagRun).where(DagRun.id.in_(newest)))}


def point_states(dag_ids: Iterable[str], session: Session) -> dict[str, dict[str, tuple[str, str]]]:
    """Return DAG → point → id and state of its newest run.

    A run that a user has started may have any id: its configuration names the point. It counts for none if its task
    ``resolve`` has failed, for example because there is no such point.

    :param dag_ids: of point DAGs
    """
    listed = list(dag_ids)
    query = (
        select(DagRun.dag_id, DagRun.run_id, DagRun.state)
        .where(DagRun.dag_id.in_(listed))
        .order_by(DagRun.id)
    )
    by_users = _points_by_users(listed, session)
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for dag_id, run_id, state in session.execute(query):
        point = by_users.get((dag_id, run_id), point_of_run(run_id))
        if point is not None:
            found[dag_id][point] = run_id, str(state)
    return found


def _points_by_users(dag_ids: list[str], session: Session) -> dict[tuple[str, str], str | None]:
    """Return DAG and run → point of the runs that no task has started; None for a run without a point."""
    by_users = DagRun.dag_id.in_(dag_ids) & (DagRun.run_type != DagRunType.OPERATOR_TRIGGERED)
    unresolved = (
        select(TaskInstance.dag_id, TaskInstance.run_id)
        .join(TaskInstance.dag_run)
        .where(by_users, TaskInstance.task_id == RESOLVE, TaskInstance.state == "failed")
    )
    without = {(dag_id, run_id) for dag_id, run_id in session.execute(unresolved)}
    found: dict[tuple[str, str], str | None] = {}
    for run in session.scalars(select(DagRun).where(by_users)):
        point = (run.conf or {}).get("point")
        key = run.dag_id, run.run_id
        found[key] = point if is_point_name(point) and key not in without else None
    return found


def launched(sweep: str, run_ids: Collection[str], session: Session) -> set[str]:
    """Return which of a sweep's runs have launched their points."""
    query = select(TaskInstance.run_id).where(
        TaskInstance.dag_id == sweep,
        TaskInstance.task_id == LAUNCH,
        TaskInstance.run_id.in_(list(run_ids)),
        TaskInstance.state == "success",
    )
    return set(session.scalars(query))


def point_runs(sweep: str, run_id: str, session: Session) -> dict[str, Run]:
    """Return point → its run for a run of the sweep, which has launched that run or waits for it."""
    run = session.scalar(select(DagRun).where(DagRun.dag_id == sweep, DagRun.run_id == run_id))
    ids = awaited_runs(run, session) if run else set()
    found: dict[str, Run] = {}
    for point in reversed(runs_of(point_dag_id(sweep), session)):
        name = point.conf.get("point")
        if isinstance(name, str) and (point.conf.get("run") == run_id or point.run_id in ids):
            found[name] = point
    return found


def stage_states(dag_id: str, run_ids: Collection[str], session: Session) -> dict[str, dict[str, str]]:
    """Return run → stage → a letter of :data:`STATES`."""
    tasks: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    listed = list(run_ids)
    for start in range(0, len(listed), _AT_ONCE):
        query = select(TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state).where(
            TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_(listed[start : start + _AT_ONCE])
        )
        for run_id, task_id, state in session.execute(query):
            stage, _, step = task_id.rpartition(".")
            if stage and step in _STEPS:
                tasks[run_id][stage][step] = str(state or "")
    return {
        run_id: {stage: stage_state(steps) for stage, steps in of.items()} for run_id, of in tasks.items()
    }


def stage_state(steps: Mapping[str, str]) -> str:
    """Return the letter of a stage from the states of its tasks.

    :param steps: name of a step → state of its task, empty if it has none
    """
    watch, submit = steps.get("watch", ""), steps.get("submit", "")
    waits = [state for step, state in steps.items() if step not in ("watch", "submit")]
    if watch == "success":
        return FINISHED
    if "failed" in (watch, submit, steps.get("await_start", "")):
        return FAILED
    if "skipped" in (watch, submit, *waits):
        return SKIPPED
    # these waits fail if the earlier stage cannot give the checkpoint or the line any more, as in progress.py
    if "upstream_failed" in (watch, submit, *waits) or "failed" in waits:
        return BLOCKED
    if "up_for_retry" in (watch, submit):
        return RESTARTING
    if submit == "success" or watch in _ACTIVE:
        return RUNNING
    return QUEUED if submit in _ACTIVE else WAITING


def _run(run: DagRun) -> Run:
    return Run(run.run_id, str(run.state), _seconds(run.start_date), _seconds(run.end_date), run.conf or {})


def _seconds(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None
