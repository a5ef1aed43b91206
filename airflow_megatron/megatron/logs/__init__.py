"""Megatron's log lines, read as a stream of records; all attempts of a run put together.

Imports ``spec``.
Others use ``log_lines`` and ``training_run``.
"""
