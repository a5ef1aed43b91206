"""Submission of an attempt, and of the jobs queued behind it: later attempts of the job, and the following stages.

Imports ``supervision`` and the layers below; no Airflow.
Operators, the command line and the simulation use it.
"""
