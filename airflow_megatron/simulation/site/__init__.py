"""A simulated site: machines, faults, jobs, the log lines that they leave, and formulas to check it against.

Imports ``slurm``, ``megatron`` and ``spec``.
``supervisors`` and ``run`` use it.
"""
