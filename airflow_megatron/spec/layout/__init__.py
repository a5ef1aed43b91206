"""Where a sweep's files are on the cluster: every path below ``run_root``, spelled once.

Imports ``trust`` only. Everything else in this package takes paths and names of files from here; the shell
scripts get them as variables (:mod:`airflow_megatron.slurm.remote.shell_files`).
"""
