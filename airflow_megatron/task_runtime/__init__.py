"""Parts that operators, sensors and triggers share while a task runs: stored jobs, task order, the cluster's poller.

Imports Airflow, hooks and the layers below; no operator, no sensor.
Only Airflow classes of this package use it.
"""
