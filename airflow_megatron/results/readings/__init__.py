"""Content of run directories: one remote command for all, its reader, and the state of every job.

Imports ``megatron``, ``slurm`` and ``spec``.
Others use ``snapshot``, ``progress`` and ``sweep_jobs``.
"""
