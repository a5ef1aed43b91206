"""Communication with Slurm over a connection to a login node. Imports ``spec`` only.

Its packages, lowest first: ``remote``, ``states``, ``verdicts``, ``polling``, ``submission``, ``repair``.
A pure function builds the text of each remote command, and another pure function parses its output.
"""
