"""Task decorators: Python functions as Slurm jobs.

Imports Airflow, ``operators`` and the layers below.
Airflow finds them in the provider's metadata.
"""
