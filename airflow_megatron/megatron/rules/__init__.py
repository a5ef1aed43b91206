"""Rules as data: the arguments that a rule reads, its condition, and the hint.

Imports ``arguments``.
``validation`` holds the rules themselves; others use ``command_line`` and ``problem``.
"""
