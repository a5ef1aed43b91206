"""Making a project, the local cluster, and putting what jobs need onto a cluster.

Imports ``local``, ``runs`` and the layers below.
The command line uses ``init_command`` and ``cluster_commands``.
"""
