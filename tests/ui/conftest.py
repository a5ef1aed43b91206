"""An Airflow database, and a server of the pages, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow_database import empty_database
from fastapi import FastAPI

from airflow_megatron.ui.app import sweep_results_app
from airflow_megatron.ui.live.result_folders import ResultFolders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty Airflow database: tokens and rights are looked up there."""
    with empty_database(tmp_path_factory.mktemp("airflow") / "airflow.db"):
        yield


@pytest.fixture(scope="module")
def server() -> Callable[[Path], FastAPI]:
    """Return a server of the pages for a folder of results; FastAPI needs 40 ms to make one, so it is made once."""
    folders, app = ResultFolders(Path()), FastAPI()
    app.mount("/megatron", sweep_results_app(folders))

    def of(root: Path) -> FastAPI:
        folders.root = root
        return app

    return of
