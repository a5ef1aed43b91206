"""Checks of jobs of every kind: names, limits, outputs, patterns, secrets, restarts.

Imports ``checks.findings``, ``requirements`` and the layers below.
``plan.submission_checks`` runs them.
"""
