"""Results of a sweep: what its run directories hold, as tables, plots and a report.

Its rooms, lowest first: ``readings``, ``tables``, ``plots``, ``report``.
Imports ``megatron``, ``slurm`` and ``spec``; no Airflow.
"""
