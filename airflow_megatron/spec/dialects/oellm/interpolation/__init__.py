"""OmegaConf's ``${…}`` texts: parsed, resolved and evaluated without OmegaConf and without ``eval``.

Imports ``spec.documents``, ``spec.trust`` and ``spec.expressions``.
Only the dialect uses it.
"""
