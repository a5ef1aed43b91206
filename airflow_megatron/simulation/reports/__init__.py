"""Comparisons of policies as tables and pictures, and the cases with a known answer.

Imports ``run``, ``scenarios`` and the packages below.
The command line uses it.
"""
