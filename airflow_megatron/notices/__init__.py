"""Notices of a sweep: their text, the files and the notifier classes that a spec may name.

Imports ``spec``, ``slurm`` and ``results``; no Airflow.
The checks, the operators and the notifiers use it.
"""
