"""SSH keys that may run only the package's remote programs: the programs, the requests, and the part on the cluster.

Imports ``results.readings``, ``slurm`` and ``spec``.
``hooks.slurm`` sends the requests; ``cli.setup`` installs the part on the cluster.
"""
