"""Airflow's commands in processes of their own: with few garbage collections, or forked from one process.

Imports nothing of this package; only the program of a fork server refers to modules of upper layers, by name.
``cli``, ``dag_factory`` and ``operators`` use it.
"""
