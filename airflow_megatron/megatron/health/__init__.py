"""Health of a running training: detectors that follow the lines of its log.

Imports ``megatron.logs`` and ``spec``; no Airflow.
Triggers and the simulation use ``training_health``.
"""
