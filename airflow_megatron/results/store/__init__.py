"""The append-only store of a sweep's results: tables as Parquet segments, written while jobs run.

Its modules, lowest first: ``tables`` (what is stored), ``batches``, ``frames`` (rows as data frames), ``segments``
(files), ``compaction``, ``writer`` (the thread that writes), ``job_rows`` (what a job's trigger stores),
``snapshot_rows`` (what run directories hold), ``superseded``, ``reading``, ``view`` (for the page).
Imports ``readings``, ``megatron``, ``slurm`` and ``spec``; no Airflow. Others use ``job_rows``, ``reading``, ``view``.
"""
