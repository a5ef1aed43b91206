"""A simulated site: machines, faults, jobs and their log lines, and formulas for validation.

Imports ``slurm``, ``megatron`` and ``spec``.
``supervisors`` and ``run`` use it.
"""
