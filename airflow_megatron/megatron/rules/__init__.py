"""Rules as data: the arguments that a rule reads, its condition, and its hint.

Imports ``arguments``.
``validation`` defines the rules; other packages use ``command_line`` and ``problem``.
"""
