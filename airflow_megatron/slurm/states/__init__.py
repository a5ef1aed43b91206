"""Slurm's output about a job: ids, states, reasons, exit codes, and one poll's observation of it.

Imports ``remote``.
Others use ``job_states`` and ``observation``.
"""
