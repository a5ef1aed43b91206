"""The trainers, one folder each: their properties (``trainer``) and arguments.

Imports ``arguments``, ``rules`` and ``spec``.
Other packages use ``trainer`` and ``trainer_table``, and find a trainer by its name.
"""
