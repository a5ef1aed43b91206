"""Tables of results: trainings, benchmarks, evaluations, points, branches.

Imports ``readings``.
``plots``, ``report`` and the command line use it.
"""
