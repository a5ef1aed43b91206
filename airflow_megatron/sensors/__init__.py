"""Airflow sensors: they wait for jobs, checkpoints, log lines, files and points.

Imports ``triggers``, ``task_runtime``, ``supervision`` and the layers below.
``dag_factory`` and DAGs of others use the classes; each module holds one.
"""
