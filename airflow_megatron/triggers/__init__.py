"""Airflow triggers. They only observe, because a trigger may run twice; a killed task's trigger cancels its job.

Imports ``hooks``, ``task_runtime``, ``supervision`` and the layers below.
Operators and sensors defer to them; their paths and arguments are stored in Airflow's database.
"""
