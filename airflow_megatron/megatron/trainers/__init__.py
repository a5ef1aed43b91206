"""The trainers, one folder each: their properties (``trainer``) and arguments.

Imports ``arguments``, ``rules`` and ``spec``.
Others use ``trainer`` and ``trainer_table``, and get a trainer by its name.
"""
