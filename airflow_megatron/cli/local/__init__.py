"""The local cluster and the local Airflow, started, waited for and stopped.

Imports ``console`` and the layers below.
``cli.runs`` uses it.
"""
