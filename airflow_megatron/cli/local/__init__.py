"""Start, stop and monitor the local cluster and the local Airflow.

Imports ``spec``.
``cli.runs`` and ``cli.setup`` use it.
"""
