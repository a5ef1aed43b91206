"""Requirements of a sweep's jobs and their environment: machine, arguments, memory, queue, files.

Imports ``megatron`` and ``spec``.
The checks before submission, the plan and ``supervision`` use it.
"""
