"""Following a job through its attempts: what to submit next, and what conditions and events ask for.

Imports ``plan`` and the layers below; no Airflow.
Operators, triggers and the simulation use the same functions.
"""
