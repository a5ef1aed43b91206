"""The page *Megatron sweeps* in Airflow's web UI, and Airflow's listener of runs.

Imports ``dag_factory``, all layers that know no Airflow but ``simulation``, and all packages of Airflow classes.
Airflow loads its plugin by an entry point.
"""
