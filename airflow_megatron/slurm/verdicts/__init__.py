"""The verdict on an attempt: outcome, evidence in the log, the restart decision, and the records of verdicts.

Imports ``states`` and ``remote``; it runs no commands.
Others use ``verdict``, ``outcomes``, ``signatures``, ``restarts`` and ``stage_records``.
"""
