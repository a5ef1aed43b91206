"""Tables of results: trainings, benchmarks, evaluations, points, branches.

Imports ``readings``, ``megatron``, ``slurm`` and ``spec``.
``fits``, ``plots``, ``report``, ``ui`` and the command line use it.
"""
