"""What the jobs of a sweep will need and find: machine, arguments, memory, queue, files.

Imports ``spec``, ``megatron`` and ``slurm``.
The checks before submission and the plan use it.
"""
