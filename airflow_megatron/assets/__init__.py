"""What other DAGs can be scheduled on: finished stages and reports of sweeps.

Imports Airflow.
The DAGs of sweeps announce these assets; anybody's own DAG names them.
"""
