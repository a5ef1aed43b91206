"""Requirements of a sweep's jobs and their environment: machine, arguments, memory, queue, files.

Imports ``spec``, ``megatron`` and ``slurm``.
The checks before submission and the plan use it.
"""
