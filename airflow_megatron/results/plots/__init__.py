"""Figures of results, whose bytes depend on what is drawn alone.

Imports ``fits``, ``tables`` and ``readings``.
``report`` uses it.
"""
