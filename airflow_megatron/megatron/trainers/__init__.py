"""The trainers, a folder each, what every one says of itself (``trainer``), and the arguments that it takes.

Imports ``arguments``, ``rules`` and ``spec``.
Others use ``trainer`` and ``trainer_table``, and get a trainer by its name.
"""
