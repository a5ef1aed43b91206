"""Link from a task to the results of its sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink, conf

from airflow_megatron.spec.documents.configuration import RESULTS_URL, configured

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

URL_PREFIX = "/megatron"
"""Where the API server mounts the pages."""
PAGE_ROUTE = "megatron-sweeps"
"""Airflow's own page that shows them: ``/plugin/megatron-sweeps``."""


class SweepResultsLink(BaseOperatorLink):
    """The button *Sweep results* of a task: the sweep's report, inside Airflow's page."""

    name = "Sweep results"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address; the DAGs of a sweep are ``<sweep>`` and ``<sweep>.point``."""
        sweep = ti_key.dag_id.removesuffix(".point")
        pages = configured(RESULTS_URL).rstrip("/")
        if not pages:
            base = conf.get("api", "base_url", fallback="/").rstrip("/")
            pages = f"{base}/plugin/{PAGE_ROUTE}{URL_PREFIX}"
        return f"{pages}/sweeps/{sweep}"
