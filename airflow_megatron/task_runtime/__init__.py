"""Code that operators, sensors and triggers share while a task runs: stored jobs, task order, the cluster's poller.

Imports Airflow, ``hooks`` and the layers below, but no operators, sensors or triggers.
Only Airflow classes of this package and ``dag_factory`` and ``ui`` use it.
"""
