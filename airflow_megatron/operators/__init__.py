"""Airflow operators: the tasks of sweeps and points, and those for DAGs of others.

Imports all layers that know no Airflow but ``simulation``, and the other packages of Airflow classes.
``dag_factory`` and DAGs of others use the classes; each module holds one.
"""
