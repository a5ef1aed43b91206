"""Task decorators: functions as Slurm jobs.

Imports Airflow, operators and the layers below.
Airflow finds them by the provider's metadata.
"""
