"""Example DAGs, which the tests run on the local cluster.

Import only parts that DAGs of users may import.
Airflow shows them with ``[core] load_examples``; they use the connection ``slurm_local`` of the local cluster.
"""
