"""Exactly one Slurm job per attempt: job scripts, single jobs, arrays, queue limits, cancellation.

Imports ``verdicts``, ``states`` and ``remote``.
Others use ``single_job``, ``job_array``, ``job_script`` and ``cancellation``.
"""
