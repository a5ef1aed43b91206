"""Check for the plugin's entry point, because two plugins of one name are an import error in Airflow."""

from __future__ import annotations

from importlib.metadata import entry_points

GROUP = "airflow.plugins"
NAME = "airflow_megatron"


def is_registered() -> bool:
    """Return whether an installed distribution has the entry point of the plugin."""
    return bool(entry_points(group=GROUP, name=NAME))
