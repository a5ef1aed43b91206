"""Submitting an attempt, and what is queued behind it: later attempts of the job, and the stages after it.

Imports ``supervision`` and the layers below; no Airflow.
Operators, the command line and the simulation use it.
"""
