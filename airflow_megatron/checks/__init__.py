"""The checks before submission: ``sweeps`` for every sweep, ``trainings`` for problems of trainings.

Imports ``requirements`` and the layers below.
``plan.submission_checks`` runs them all; each returns ``findings``.
"""
