"""The trainer ``megatron_lm``: upstream's own scripts, of a checkout on the cluster.

Imports ``trainers`` and ``arguments``.
Others get it by its name.
"""
