"""Airflow DAGs from sweep specs: one DAG for each sweep, and one for its points.

Imports all layers without Airflow except ``simulation``, and the packages of Airflow classes.
Files in ``dags/`` use ``spec_files``; ``ui`` and ``cli`` use ``building`` and the modules on runs.
"""
