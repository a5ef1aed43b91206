"""Layout of a sweep's files on the cluster: the only code that builds paths below ``run_root``.

Imports ``trust``.
All other packages take paths and file names from it; shell scripts get them as variables
(:mod:`airflow_megatron.slurm.remote.shell_files`).
"""
