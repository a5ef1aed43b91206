"""Import this module to import and compute once what each ``airflow dags test`` of a point needs.

Fork servers import it. Afterwards the process has no other threads, which its forks would not have.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import sys
from typing import Final

from airflow_megatron.airflow_commands.run_command import collect_seldom

_MODULES: Final = (
    "airflow.__main__",
    "airflow.api_fastapi.execution_api.app",
    "airflow.cli.cli_parser",
    "airflow.cli.commands.dag_command",
    "airflow.dag_processing.dagbag",
    "airflow.models.dagrun",
    "airflow.providers_manager",
    "airflow.sdk.definitions.dag",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "airflow.serialization.definitions.dag",
    "airflow.serialization.serialized_objects",
    "airflow_megatron.plan.run_results",
    "airflow_megatron.ui.plugin",
)


def _preload() -> None:
    of_sweeps = importlib.import_module("airflow_megatron.ui.preloading")
    for name in (*_MODULES, *of_sweeps.OF_READERS, *of_sweeps.OF_TASKS):
        importlib.import_module(name)
    sys.modules["airflow.cli.cli_parser"].get_parser()  # Airflow caches it, and the server
    asyncio.run(_first_request())


async def _first_request() -> None:
    """Let the server create the routes of all versions of the API."""
    server = sys.modules["airflow.sdk.execution_time.supervisor"].in_process_api_server()
    client = sys.modules["httpx"].AsyncClient(transport=server.atransport, base_url="http://in-process")
    async with client:
        await client.get("/nothing")


collect_seldom()
try:
    _preload()
except Exception:  # commands report it as well
    logging.getLogger(__name__).warning("Airflow cannot be imported before its commands", exc_info=True)
gc.freeze()
