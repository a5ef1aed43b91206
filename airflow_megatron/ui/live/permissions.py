"""What Airflow's auth manager lets a user see and do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 FastAPI reads it
from airflow.models.dag import DagModel
from fastapi import HTTPException, Request

from airflow_megatron.spec.model.dag_names import point_dag_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod


def is_allowed(
    user: Any, dag_id: str, method: ResourceMethod = "GET", entity: DagAccessEntity | None = None
) -> bool:
    """Return whether a user may do something with a DAG."""
    return get_auth_manager().is_authorized_dag(
        method=method,
        access_entity=entity,
        details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
        user=user,
    )


def may_see_results(user: Any, sweep: str) -> bool:
    """Return whether a user may read what the results come from: runs of the sweep, and tasks of its points."""
    return (
        is_allowed(user, sweep)
        and is_allowed(user, sweep, entity=DagAccessEntity.RUN)
        and is_allowed(user, point_dag_id(sweep), entity=DagAccessEntity.TASK_INSTANCE)
    )


def may_read_logs(user: Any, sweep: str) -> bool:
    """Return whether a user may read the logs of the sweep's jobs."""
    return is_allowed(user, point_dag_id(sweep), entity=DagAccessEntity.TASK_LOGS)


def without_log_line(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Return a failed attempt for users who may not read logs: its reason usually ends with the line that decided."""
    hidden = {"line": "", "reason": "shown to users who may read the task logs"}
    return {name: hidden.get(name, value) if value else value for name, value in attempt.items()}


def check_text(request: Request) -> None:
    """Refuse a request with a NUL character: no name has one, and PostgreSQL refuses to compare with it.

    :raises HTTPException: 404
    """
    values = [*request.path_params.values(), *(value for _, value in request.query_params.multi_items())]
    if any("\0" in value for value in values):
        raise HTTPException(404, "no name contains a NUL character")


def check_reports(user: GetUserDep, dag_id: str) -> None:
    """Refuse a request for a report that the user may not see; its reasons contain lines of logs.

    :param dag_id: the sweep
    :raises HTTPException: 403
    """
    if not (may_see_results(user, dag_id) and may_read_logs(user, dag_id)):
        raise HTTPException(403, "Forbidden")


def check_results(user: GetUserDep, dag_id: str) -> None:
    """Refuse a request for results that the user may not see.

    :param dag_id: the sweep
    :raises HTTPException: 403
    """
    if not may_see_results(user, dag_id):
        raise HTTPException(403, "Forbidden")
