"""Supervision of a job through its attempts: the next submission, and the actions of conditions and events.

Imports ``plan`` and the layers below; no Airflow.
Operators, triggers and the simulation use the same functions.
"""
