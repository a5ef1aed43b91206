"""Airflow sensors, which wait for jobs, checkpoints, log lines, files and points.

Imports ``operators``, ``triggers``, ``task_runtime`` and the layers below.
``dag_factory`` and DAGs of users use the classes; each module has one.
"""
