"""Layout of a sweep's files on the cluster: every path below ``run_root``, spelled once.

Imports ``trust`` only. Everything else in this package takes paths and names of files from here; the shell
scripts get them as variables (:mod:`airflow_megatron.slurm.remote.shell_files`).
"""
