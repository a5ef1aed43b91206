"""DAG file with the DAGs of all valid specs in ``sweep_specs/``."""

from __future__ import annotations

from airflow_megatron.dag_factory.spec_files import build_sweep_dags

for dag in build_sweep_dags():
    globals()[dag.dag_id] = dag
