"""Airflow operators: the tasks of sweeps and points, and operators for DAGs of users.

Imports ``triggers``, ``notifications``, ``links``, ``task_runtime`` and the layers below.
``dag_factory``, ``decorators``, ``sensors`` and DAGs of users use the classes; each module has one.
"""
