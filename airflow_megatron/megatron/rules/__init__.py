"""Rules as data: what is read of a command line, what breaks a rule, what to write instead.

Imports ``arguments``.
``validation`` holds the rules themselves; others use ``command_line`` and ``problem``.
"""
