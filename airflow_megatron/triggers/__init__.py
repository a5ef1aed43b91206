"""Airflow triggers. They only observe, because a trigger may run twice; the trigger of a killed task cancels its job.

Imports ``hooks``, ``task_runtime``, ``supervision`` and the layers below.
Operators and sensors defer to them; Airflow's database stores their paths and arguments.
"""
