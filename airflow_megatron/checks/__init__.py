"""The checks before submission: ``sweeps`` for every sweep, ``trainings`` for what a training would meet.

Imports ``requirements`` and the layers below.
``plan.submission_checks`` runs them all; each returns ``findings``.
"""
