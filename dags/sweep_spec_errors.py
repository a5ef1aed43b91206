"""DAG file without a DAG: Airflow shows the errors of the specs in ``sweep_specs/`` as an import error of this file."""

from __future__ import annotations

from airflow_megatron.dag_factory.spec_files import raise_for_spec_errors

raise_for_spec_errors()
