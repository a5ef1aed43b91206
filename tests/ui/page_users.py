"""Users of Airflow's pages, and what they may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

if TYPE_CHECKING:
    import pytest
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity


def token(role: str | None) -> str:
    """Return a login token of a user with this role."""
    return create_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ada", role=role))


def deny(monkeypatch: pytest.MonkeyPatch, dag_id: str, entity: DagAccessEntity | None) -> None:
    """Allow everything but one kind of entity of one DAG."""

    def allows(self: object, *, details: Any = None, access_entity: Any = None, **_: object) -> bool:
        return (details.id, access_entity) != (dag_id, entity)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", allows)
