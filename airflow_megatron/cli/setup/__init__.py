"""Commands that create projects, control the local cluster, and install programs on clusters.

Imports ``cli.local``, ``cli.runs`` and the layers below.
``command_line`` lists them.
"""
