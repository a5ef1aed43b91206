"""Airflow plugin with the page *Megatron sweeps*, unless the installed package registers it already."""

from __future__ import annotations

from airflow_megatron.ui.registered_plugin import is_registered

if not is_registered():
    from airflow_megatron.ui.plugin import AirflowMegatronPlugin

    __all__ = ["AirflowMegatronPlugin"]
