"""Communication with Slurm over a connection to a login node. Imports ``spec`` only.

Its packages, lowest first: ``remote``, ``states``, ``verdicts``, then ``polling``, ``submission`` and ``repair``;
``launch`` is separate. A pure function builds the text of each remote command, and another one parses its output.
"""
