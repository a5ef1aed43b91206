"""The addresses from which the live pages fetch their data. Actions are requests to Airflow's own API."""

from __future__ import annotations

import functools
import gc
import logging
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 FastAPI reads it
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Query, Request, Response

from airflow_megatron.results.store.segments import StoreError
from airflow_megatron.spec.model.dag_names import point_dag_id
from airflow_megatron.ui.live.answers import json_answer
from airflow_megatron.ui.live.evaluations import evaluation_answer
from airflow_megatron.ui.live.planned_points import planned_sweep
from airflow_megatron.ui.live.point_table import point_rows
from airflow_megatron.ui.live.recorded import NothingRecorded
from airflow_megatron.ui.live.sweep_list import sweep_rows
from airflow_megatron.ui.live.sweep_runs import STATES, point_runs, runs_of, stage_states, sweep_dags

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod

    from airflow_megatron.ui.live.recorded import Recorded
    from airflow_megatron.ui.live.result_folders import ResultFolders

log = logging.getLogger(__name__)

RUNS_SHOWN = 20
"""Runs of a sweep to choose from."""
MANY_ROWS = 100
"""Points of a table that is so large that answers make the garbage collector run."""


def is_allowed(
    user: Any, dag_id: str, method: ResourceMethod = "GET", entity: DagAccessEntity | None = None
) -> bool:
    """Return whether Airflow's auth manager lets a user do something with a DAG."""
    return get_auth_manager().is_authorized_dag(
        method=method,
        access_entity=entity,
        details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
        user=user,
    )


def stored_sweep(sweep: str) -> Recorded:
    """Return what is stored of a sweep; nothing, with a warning in the log, where the store does not answer."""
    from airflow_megatron.ui.live.stored import StoredSweep  # importing polars is slow

    try:
        return StoredSweep(sweep)
    except StoreError as error:
        log.warning("%s", error)
        return NothingRecorded()


def stored_gpu_hours(sweep: str) -> float | None:
    """Return the GPU-hours of a sweep's attempts; None, with a warning in the log, where the store does not answer."""
    from airflow_megatron.ui.live.stored import ended_gpu_hours  # importing polars is slow

    try:
        return ended_gpu_hours(sweep)
    except StoreError as error:
        log.warning("%s", error)
        return None


@functools.cache
def freeze_server() -> None:
    """Move all objects of the server out of the garbage collector's reach, once.

    They are modules, nearly all of them: scanning those of Airflow and polars stops answers for 0.6 s every 20 answers.
    """
    gc.collect()
    gc.freeze()


def live_routes(
    folders: ResultFolders,
    recorded: Callable[[str], Recorded] = stored_sweep,
    gpu_hours: Callable[[str], float | None] = stored_gpu_hours,
) -> APIRouter:
    """Return the routes.

    :param folders: where the reports are
    :param recorded: sweep → what has been recorded of it
    :param gpu_hours: sweep → GPU-hours of its attempts that have ended
    """
    routes = APIRouter(prefix="/api")

    def check(user: Any, sweep: str) -> None:
        """Refuse users who may not see everything that the page shows: runs of the sweep, and tasks of its points."""
        points = point_dag_id(sweep)
        if not (
            is_allowed(user, sweep)
            and is_allowed(user, sweep, entity=DagAccessEntity.RUN)
            and is_allowed(user, points, entity=DagAccessEntity.TASK_INSTANCE)
        ):
            raise HTTPException(403, "Forbidden")

    @routes.get("/sweeps")
    def sweeps(request: Request, user: GetUserDep) -> Response:
        """Send the list of the sweeps that the user may see."""
        reports = {report.name: report for report in folders.sweeps() if is_allowed(user, report.name)}
        with create_session() as session:
            shown = [
                sweep for sweep in sweep_dags(session) if is_allowed(user, sweep, entity=DagAccessEntity.RUN)
            ]
            return json_answer(request, {"rows": sweep_rows(shown, reports, session, gpu_hours, recorded)})

    @routes.get("/sweeps/{dag_id}")
    def sweep(request: Request, user: GetUserDep, dag_id: str, run: str | None = None) -> Response:
        """Send the table of a run's points."""
        check(user, dag_id)
        with create_session() as session:
            runs = runs_of(dag_id, session, limit=RUNS_SHOWN)
            chosen = next((one for one in runs if one.run_id == run), None) if run else next(iter(runs), None)
            if run and chosen is None:
                raise HTTPException(404, "this sweep has no such run")
            of_points = point_runs(dag_id, chosen.run_id, session) if chosen else {}
            ids = [one.run_id for one in of_points.values()]
            states = stage_states(point_dag_id(dag_id), ids, session)
        planned = planned_sweep(dag_id, chosen.run_id) if chosen else None
        content: dict[str, Any] = {
            "sweep": dag_id,
            "runs": [{"run": one.run_id, "state": one.state, "started": one.started} for one in runs],
            "run": chosen.run_id if chosen else None,
            "state": chosen.state if chosen else None,
            "ended": chosen.ended if chosen else None,
            "states": STATES,
            "has_report": folders.report(dag_id) is not None,
            "may": {
                "cancel_sweep": is_allowed(user, dag_id, "PUT", DagAccessEntity.RUN),
                "change_points": is_allowed(user, point_dag_id(dag_id), "PUT", DagAccessEntity.RUN),
            },
            "stages": [],
            "rows": [],
        }
        if chosen and planned:
            longest = max(planned.points, key=lambda point: len(point.stages), default=None)
            content |= {
                "cluster": planned.cluster,
                "description": planned.description,
                "digest": planned.digest,
                "stages": [stage.name for stage in longest.stages] if longest else [],
                "rows": point_rows(planned, of_points, states, recorded(dag_id)),
            }
        answer = json_answer(request, content)
        if len(content["rows"]) >= MANY_ROWS:
            freeze_server()
        return answer

    @routes.get("/sweeps/{dag_id}/curves")
    def curves(
        request: Request,
        user: GetUserDep,
        dag_id: str,
        metric: Annotated[str, Query(pattern="^[a-z_]{1,40}$")] = "loss",
        points: Annotated[list[str] | None, Query()] = None,
        most: Annotated[int, Query(ge=2, le=2000)] = 300,
        rate: bool = False,
    ) -> Response:
        """Send a curve for each training of some points, with the learning rates if they are asked for."""
        check(user, dag_id)
        curves = recorded(dag_id).curves(metric, points or [], most)
        found = [{key: curve[key] for key in curve if rate or key != "rate"} for curve in curves]
        return json_answer(request, {"metric": metric, "curves": found})

    @routes.get("/sweeps/{dag_id}/evaluations")
    def evaluations(
        request: Request, user: GetUserDep, dag_id: str, name: Annotated[str, Query(max_length=500)] = ""
    ) -> Response:
        """Send a chart of one figure of the evaluations over the checkpoints."""
        check(user, dag_id)
        return json_answer(request, evaluation_answer(recorded(dag_id).figures(), name))

    @routes.get("/sweeps/{dag_id}/failures")
    def failures(request: Request, user: GetUserDep, dag_id: str) -> Response:
        """Send the failed attempts, without lines of logs for users who may not read logs."""
        check(user, dag_id)
        may_read = is_allowed(user, point_dag_id(dag_id), entity=DagAccessEntity.TASK_LOGS)
        rows = [
            {name: value for name, value in row.items() if may_read or name != "line"}
            for row in recorded(dag_id).failures()
        ]
        return json_answer(request, {"rows": rows})

    @routes.get("/sweeps/{dag_id}/point")
    def point(request: Request, user: GetUserDep, dag_id: str, run: str, point: str) -> Response:
        """Send the jobs of a point and their attempts."""
        check(user, dag_id)
        planned = planned_sweep(dag_id, run)
        found = next((one for one in planned.points if one.name == point), None) if planned else None
        if planned is None or found is None:
            raise HTTPException(404, "this run has no such point")
        with create_session() as session:
            of_point = point_runs(dag_id, run, session).get(point)
            states = stage_states(point_dag_id(dag_id), [of_point.run_id] if of_point else [], session)
        record = recorded(dag_id)
        row = point_rows(
            planned._replace(points=(found,)), {point: of_point} if of_point else {}, states, record
        )
        may_read = is_allowed(user, point_dag_id(dag_id), entity=DagAccessEntity.TASK_LOGS)
        content = {
            "row": row[0],
            "jobs": [
                {
                    "stage": stage.name,
                    "kind": stage.kind,
                    "run_dir": stage.run_dir,
                    "trains": stage.trains,
                    "parent": stage.parent,
                }
                for stage in found.stages
            ],
            "attempts": [
                {name: value for name, value in attempt.items() if may_read or name != "line"}
                for attempt in record.attempts(point)
            ],
        }
        return json_answer(request, content)

    return routes
