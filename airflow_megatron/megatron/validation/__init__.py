"""The checks of upstream's programs on a command line, repeated before a job is submitted.

Imports ``arguments`` and ``rules``.
Others call ``command_checks`` for one command line, and ``repeated_checks`` for those of a sweep.
"""
