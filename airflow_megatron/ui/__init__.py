"""The page *Megatron sweeps* in Airflow's web UI, and a listener for runs.

Imports ``dag_factory``, all packages of Airflow classes, and all layers without Airflow except ``simulation``.
Airflow loads the plugin by an entry point.
"""
