"""Comparisons of policies as tables and figures, and validation against published values.

Imports ``run``, ``scenarios`` and the packages below.
The command line uses it.
"""
