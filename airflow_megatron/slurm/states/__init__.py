"""Parsers of Slurm's output about a job: ids, states, reasons and exit codes; the observation of a poll.

Imports ``remote``.
Others use ``job_states`` and ``observation``.
"""
