"""Knowledge about Megatron itself, per release. Imports ``spec`` only.

Its rooms, lowest first: ``arguments``, ``rules``, ``validation``, ``commands``, and beside them ``logs``,
``checkpoints``, ``estimates`` and ``health``.
"""
