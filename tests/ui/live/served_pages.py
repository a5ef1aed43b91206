"""Airflow's API server with the pages, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from airflow.api_fastapi.app import create_app, purge_cached_app

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.ui.app import sweep_results_app
from airflow_megatron.ui.live.result_folders import ResultFolders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve Airflow's API with the pages; yield its address."""
    app = create_app(apps="core")
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", "") != "/megatron"]
    app.mount("/megatron", sweep_results_app(ResultFolders(folder)))
    app.router.routes.insert(0, app.router.routes.pop())  # before the page that handles every address
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        purge_cached_app()
