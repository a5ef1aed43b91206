"""Keys that may run only the package's remote programs: the programs, the requests for them, and the cluster's side.

Imports ``results`` and the layers below. ``hooks.slurm`` sends the requests, ``cli.setup`` installs the cluster's side.
"""
