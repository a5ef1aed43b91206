"""Notices of a sweep: their text, and the files and notifier classes that a spec may name.

Imports ``megatron``, ``slurm`` and ``spec``; no Airflow.
The checks, the operators and the notifiers use it.
"""
