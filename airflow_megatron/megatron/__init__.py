"""Knowledge about Megatron itself, per release. Imports ``spec`` only.

Its packages, lowest first: ``arguments``, ``rules``, ``validation``, ``commands``, and beside them ``logs``,
``checkpoints``, ``estimates`` and ``health``.
"""
