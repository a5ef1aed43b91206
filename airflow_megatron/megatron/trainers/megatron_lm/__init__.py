"""The trainer ``megatron_lm``: upstream's scripts from a checkout on the cluster.

Imports ``trainers``, ``arguments`` and ``spec``.
Other packages find it by its name.
"""
