"""Append-only store of a sweep's results: tables in Parquet segments, written while jobs run.

Modules, lowest first: ``tables`` (what is stored), ``batches``, ``frames`` (rows as data frames), ``segments``
(files), ``compaction``, ``writer`` (the thread that writes), ``job_rows`` (what a job's trigger stores),
``snapshot_rows`` (what run directories hold), ``superseded``, ``reading``, ``view`` (for the page).
Imports ``readings``, ``megatron``, ``slurm`` and ``spec``, but not Airflow. Other packages import ``job_rows``,
``reading`` and ``view``.
"""
