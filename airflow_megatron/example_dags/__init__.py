"""Example DAGs, each of them a test of the package on the local cluster.

Import what anybody's own DAGs may import.
Airflow shows them with ``[core] load_examples``; the connection ``slurm_local`` is that of the local cluster.
"""
