"""Results of a sweep: what the run directories hold, as status grids, tables, plots and a report.

Nothing here imports Airflow or reaches a cluster: :mod:`~airflow_megatron.results.snapshot` makes the one
remote command that collects everything, and reads its answer.
"""
