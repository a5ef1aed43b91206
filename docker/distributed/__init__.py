"""Airflow's distributed engine on one machine: PostgreSQL, Redis, CeleryExecutor and several of each daemon.

Run it as ``python3 docker/distributed <command>``. Only the standard library and the local cluster's process handling
are used here; Airflow itself runs in its own environment (``.local/venv-distributed``).
"""
