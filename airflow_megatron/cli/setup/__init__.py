"""Commands that create projects, control the local cluster, and install programs on clusters.

Imports ``local``, ``runs`` and the layers below.
The command line uses ``init_command`` and ``cluster_commands``.
"""
