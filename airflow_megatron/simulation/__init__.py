"""A cluster, its faults and its clock, simulated; the restart policy that runs in it is the real one.

Its packages, lowest first: ``site``, ``supervisors``; above both ``run`` and ``scenarios``, above these ``reports``.
The command line uses ``scenarios`` and ``reports``.
"""
