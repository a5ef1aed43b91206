"""Airflow's commands in processes of their own: with few garbage collections, or forked from one process.

Imports nothing of this package; it refers to modules of ``dag_factory`` and ``hooks`` by name.
``cli``, ``dag_factory`` and ``operators`` use it.
"""
