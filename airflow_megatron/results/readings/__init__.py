"""Content of run directories: a remote command that collects it, a parser of its output, and the state of every job.

Imports ``megatron``, ``slurm`` and ``spec``.
Others use ``snapshot``, ``progress`` and ``sweep_jobs``.
"""
