"""Requirements of a sweep's jobs, and what they find: machine, arguments, memory, queue, files.

Imports ``spec``, ``megatron`` and ``slurm``.
The checks before submission and the plan use it.
"""
