"""OmegaConf's ``${…}`` expressions, parsed and evaluated without OmegaConf and without ``eval``.

Imports ``spec.documents``, ``spec.trust`` and ``spec.expressions``.
The dialects use it.
"""
