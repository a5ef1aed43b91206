"""Checks of trainings, conversions and evaluations: schedules, checkpoints, memory, arguments that the programs reject.

Imports ``checks.findings``, ``requirements`` and the layers below.
``plan.submission_checks`` runs them.
"""
