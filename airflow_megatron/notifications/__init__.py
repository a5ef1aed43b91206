"""Airflow notifiers, and the delivery of notices to them.

Imports ``notices``, ``task_runtime`` and the layers below.
Operators and the run listener deliver notices with it; DAGs of users may use the notifiers.
"""
