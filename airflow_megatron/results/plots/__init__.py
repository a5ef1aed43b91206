"""Figures of results; their bytes depend only on the data.

Imports ``fits``, ``tables``, ``readings`` and ``store``.
``report``, ``simulation``, ``ui`` and the command line use it.
"""
