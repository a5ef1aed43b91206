"""Checks of trainings, conversions and evaluations: schedules, checkpoints, memory, what each program would refuse.

Imports ``checks.findings``, ``requirements`` and the layers below.
``plan.submission_checks`` runs them.
"""
