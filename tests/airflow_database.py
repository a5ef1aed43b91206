"""An Airflow database for tests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from airflow import settings
from airflow.models import import_all_models
from airflow.models.base import Base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def empty_database(path: Path) -> Iterator[None]:
    """Configure an empty SQLite database for Airflow while the context is open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{path}")
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ada:admin")
        reconnect()
        import_all_models()
        Base.metadata.create_all(settings.engine)
        yield
    reconnect()


def reconnect() -> None:
    """Make Airflow connect to the database in its present configuration."""
    settings.dispose_orm()
    settings.configure_vars()
    settings.configure_orm()
