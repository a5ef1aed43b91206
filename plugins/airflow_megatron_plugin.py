"""Airflow reads this file: the page *Megatron sweeps*."""

from __future__ import annotations

from airflow_megatron.ui.plugin import AirflowMegatronPlugin

__all__ = ["AirflowMegatronPlugin"]
