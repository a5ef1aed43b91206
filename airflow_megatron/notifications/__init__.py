"""Airflow notifiers, and what hands them the notices of a sweep.

Imports ``notices``, ``task_runtime`` and the layers below.
Operators and the run listener deliver notices with it; DAGs of others may use the notifiers.
"""
