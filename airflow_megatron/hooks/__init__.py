"""Airflow hooks: connections to login nodes and trackers; sharing, keeping and renewing of logins.

Imports ``supervision`` and the layers below.
``task_runtime``, the Airflow classes above it and ``cli`` use ``slurm``; ``tracker_access`` connects to trackers.
"""
