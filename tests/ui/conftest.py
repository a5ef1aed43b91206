"""An Airflow database for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow_database import empty_database

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty Airflow database: tokens and rights are looked up there."""
    with empty_database(tmp_path_factory.mktemp("airflow") / "airflow.db"):
        yield
