"""Parsers of Megatron's log lines into records, and the joined attempts of a run.

Imports ``arguments`` and ``spec``.
Other packages use ``log_lines`` and ``training_run``.
"""
