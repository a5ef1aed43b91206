"""Airflow reads this file: it builds no DAG, and shows what is wrong in ``sweep_specs/`` as an import error."""

from __future__ import annotations

from airflow_megatron.dag_factory.spec_files import raise_for_spec_errors

raise_for_spec_errors()
