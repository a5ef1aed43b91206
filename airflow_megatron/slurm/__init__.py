"""Talking to Slurm over a connection to a login node. Imports ``spec`` only.

Its rooms, lowest first: ``remote``, ``states``, ``verdicts``, ``polling``, ``submission``, ``repair``.
Every remote command is text made by a pure function, and its answer is read by another one.
"""
