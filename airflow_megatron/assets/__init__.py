"""Assets on which other DAGs can be scheduled: finished stages and reports of sweeps.

Imports Airflow and ``spec``.
The DAGs of sweeps emit these assets; DAGs of users refer to them by name.
"""
