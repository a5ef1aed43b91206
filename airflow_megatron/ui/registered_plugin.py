"""Check whether Airflow finds the plugin by the package's entry point: two of one name are an import error."""

from __future__ import annotations

from importlib.metadata import entry_points

GROUP = "airflow.plugins"
NAME = "airflow_megatron"


def is_registered() -> bool:
    """Return whether an installed distribution names the plugin."""
    return bool(entry_points(group=GROUP, name=NAME))
