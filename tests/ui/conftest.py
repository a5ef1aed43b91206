"""An Airflow database of the tests' own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow import settings
from airflow.models import import_all_models
from airflow.models.base import Base

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty Airflow database: tokens and rights are looked up there."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("airflow") / "airflow.db"
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{path}")
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ada:admin")
        _reconnect()
        import_all_models()
        Base.metadata.create_all(settings.engine)
        yield
    _reconnect()


def _reconnect() -> None:
    settings.dispose_orm()
    settings.configure_vars()
    settings.configure_orm()
