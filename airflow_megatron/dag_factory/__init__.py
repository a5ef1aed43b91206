"""From sweep specs to Airflow DAGs: a DAG for each sweep, and one for its points.

Imports all layers that know no Airflow but ``simulation``, and all packages of Airflow classes.
Files in ``dags/`` use ``spec_files``; ``ui`` and ``cli`` use ``building`` and what reads and ends runs.
"""
