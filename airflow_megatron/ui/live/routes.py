"""The addresses from which the live pages fetch their data. Actions are requests to Airflow's own API."""

from __future__ import annotations

import functools
import gc
import logging
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 FastAPI reads it
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from airflow_megatron.results.store.segments import StoreError
from airflow_megatron.spec.model.dag_names import point_dag_id
from airflow_megatron.ui.live.answers import json_answer
from airflow_megatron.ui.live.evaluations import evaluation_answer
from airflow_megatron.ui.live.permissions import (
    check_results,
    is_allowed,
    may_read_logs,
    may_see_results,
    without_log_line,
)
from airflow_megatron.ui.live.planned_points import planned_sweep
from airflow_megatron.ui.live.point_table import point_rows
from airflow_megatron.ui.live.recorded import MOST_CURVES, NothingRecorded
from airflow_megatron.ui.live.sweep_list import sweep_rows
from airflow_megatron.ui.live.sweep_runs import (
    STATES,
    deleted_runs,
    is_sweep,
    paused_dags,
    point_runs,
    run_named,
    runs_of,
    stage_states,
    sweep_dags,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.ui.live.recorded import Recorded
    from airflow_megatron.ui.live.result_folders import ResultFolders

log = logging.getLogger(__name__)

RUNS_SHOWN = 20
"""Maximum number of runs of a sweep in the list of choices."""
FAILURES_SHOWN = 500
"""Maximum number of failed attempts that the page counts."""
LONGEST_NAME = 1000
"""Maximum length of the name of a metric: task, metric and filter have at most 200 characters each."""
MANY_ROWS = 100
"""Number of points from which a table is so large that its answers trigger garbage collections."""


def stored_sweep(sweep: str) -> Recorded:
    """Return a sweep's stored results; if the store does not answer, log a warning and return empty results."""
    from airflow_megatron.ui.live.stored import StoredSweep  # importing polars is slow

    try:
        return StoredSweep(sweep)
    except StoreError as error:
        log.warning("%s", error)
        return NothingRecorded()


def stored_gpu_hours(sweep: str) -> float | None:
    """Return the GPU-hours of a sweep's attempts; if the store does not answer, log a warning and return None."""
    from airflow_megatron.ui.live.stored import ended_gpu_hours  # importing polars is slow

    try:
        return ended_gpu_hours(sweep)
    except StoreError as error:
        log.warning("%s", error)
        return None


def check_known(dag_id: str) -> None:
    """Refuse a request for a sweep that Airflow does not have; its results would replace those of a viewed one.

    :param dag_id: the sweep
    :raises HTTPException: 404
    """
    with create_session() as session:
        if not is_sweep(dag_id, session):
            raise HTTPException(404, f"there is no sweep {dag_id!r}")


@functools.cache
def freeze_server() -> None:
    """Exclude all current objects of the server from garbage collection, once.

    Nearly all of them belong to modules. Scanning those of Airflow and polars would block the server for 0.6 s every
    20 answers.
    """
    gc.collect()
    gc.freeze()


def live_routes(
    folders: ResultFolders,
    recorded: Callable[[str], Recorded] = stored_sweep,
    gpu_hours: Callable[[str], float | None] = stored_gpu_hours,
) -> APIRouter:
    """Return the routes.

    :param folders: the folders of the reports
    :param recorded: function: sweep → its stored results
    :param gpu_hours: function: sweep → GPU-hours of its attempts that have ended
    """
    routes = APIRouter(prefix="/api")
    readable = [Depends(check_results), Depends(check_known)]

    @routes.get("/sweeps")
    def sweeps(request: Request, user: GetUserDep) -> Response:
        """Send the list of the sweeps that the user may see."""
        reports = {report.name: report for report in folders.sweeps() if may_see_results(user, report.name)}
        with create_session() as session:
            shown = [sweep for sweep in sweep_dags(session) if may_see_results(user, sweep)]
            return json_answer(request, {"rows": sweep_rows(shown, reports, session, gpu_hours, recorded)})

    @routes.get("/sweeps/{dag_id}", dependencies=readable)
    def sweep(request: Request, user: GetUserDep, dag_id: str, run: str | None = None) -> Response:
        """Send the table of a run's points."""
        with create_session() as session:
            deleted = deleted_runs(dag_id, session)
            runs = [*runs_of(dag_id, session, limit=RUNS_SHOWN), *deleted]
            chosen = next(iter(runs), None)
            if run:
                gone = next((one for one in deleted if one.run_id == run), None)
                chosen = gone or run_named(dag_id, run, session)
            if run and chosen is None:
                raise HTTPException(404, "this sweep has no such run")
            if chosen and chosen not in runs:  # an older one, whose address somebody has kept
                runs.append(chosen)
            of_points = point_runs(dag_id, chosen.run_id, session) if chosen else {}
            ids = [one.run_id for one in of_points.values()]
            states = stage_states(point_dag_id(dag_id), ids, session)
            goes_on = chosen is not None and any(one.is_active for one in (chosen, *of_points.values()))
            paused = paused_dags([dag_id, point_dag_id(dag_id)], session) if goes_on else []
        planned = planned_sweep(dag_id, chosen.run_id) if chosen else None
        content: dict[str, Any] = {
            "sweep": dag_id,
            "runs": [{"run": one.run_id, "state": one.state, "started": one.started} for one in runs],
            "run": chosen.run_id if chosen else None,
            "state": chosen.state if chosen else None,
            "ended": chosen.ended if chosen else None,
            "states": STATES,
            "has_report": folders.report(dag_id) is not None and may_read_logs(user, dag_id),
            "paused": paused,
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

    @routes.get("/sweeps/{dag_id}/curves", dependencies=readable)
    def curves(
        request: Request,
        dag_id: str,
        metric: Annotated[str, Query(pattern="^[a-z_]{1,40}$")] = "loss",
        points: Annotated[list[str] | None, Query()] = None,
        most: Annotated[int, Query(ge=2, le=2000)] = 300,
        rate: bool = False,
    ) -> Response:
        """Send a curve for each training of some points, with the learning rates if requested."""
        curves = recorded(dag_id).curves(metric, points or [], most)
        found = [{key: curve[key] for key in curve if rate or key != "rate"} for curve in curves]
        return json_answer(request, {"metric": metric, "curves": found, "most": MOST_CURVES})

    @routes.get("/sweeps/{dag_id}/evaluations", dependencies=readable)
    def evaluations(
        request: Request, dag_id: str, name: Annotated[str, Query(max_length=LONGEST_NAME)] = ""
    ) -> Response:
        """Send a chart of one metric of the evaluations over the checkpoints."""
        return json_answer(request, evaluation_answer(recorded(dag_id).figures(), name))

    @routes.get("/sweeps/{dag_id}/failures", dependencies=readable)
    def failures(request: Request, user: GetUserDep, dag_id: str) -> Response:
        """Send the failed attempts, without lines of logs for users who may not read logs."""
        stored = recorded(dag_id)
        rows = list(stored.failures(FAILURES_SHOWN))
        if not may_read_logs(user, dag_id):
            rows = list(map(without_log_line, rows))
        return json_answer(request, {"rows": rows, "left_out": stored.failure_count() - len(rows)})

    @routes.get("/sweeps/{dag_id}/point", dependencies=readable)
    def point(request: Request, user: GetUserDep, dag_id: str, run: str, point: str) -> Response:
        """Send the jobs of a point and their attempts."""
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
        attempts = record.attempts(point)
        if not may_read_logs(user, dag_id):
            attempts = list(map(without_log_line, attempts))
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
            "attempts": attempts,
        }
        return json_answer(request, content)

    return routes
