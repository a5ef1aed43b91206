"""The plugin that puts the page *Megatron sweeps* into Airflow's navigation."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_megatron.links.sweep_results import PAGE_ROUTE, URL_PREFIX
from airflow_megatron.ui import run_listener
from airflow_megatron.ui.app import sweep_results_app


class AirflowMegatronPlugin(AirflowPlugin):
    """The plugin; it mounts the pages and links to them from the navigation."""

    name = "airflow_megatron"
    fastapi_apps = [  # noqa: RUF012
        {"app": sweep_results_app(), "url_prefix": URL_PREFIX, "name": "Megatron sweeps"}
    ]
    listeners = [run_listener]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Sweeps",  # the navigation has room for a short word
            # relative, because Airflow may be served under a path prefix
            "href": f"{URL_PREFIX.lstrip('/')}/",
            "destination": "nav",
            "url_route": PAGE_ROUTE,
            "nav_top_level": True,
        }
    ]
