"""The trainer ``megatron_core``: this project's own program on the package megatron-core.

Imports ``trainers``.
Others get it by its name.
"""
