"""A simulated cluster with faults and a simulated clock; it runs the real restart policy.

Its packages and modules, lowest first: ``site``, ``supervisors``, ``run`` and ``scenarios``, ``reports``.
Imports ``supervision`` and the layers below. The command line uses ``scenarios`` and ``reports``.
"""
