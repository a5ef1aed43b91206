"""The trainer ``megatron_core``: this project's program based on the package megatron-core.

Imports ``trainers``, ``arguments`` and ``spec``.
Other packages find it by its name.
"""
