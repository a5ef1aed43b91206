"""Megatron's arguments for each trainer and release: tables, defaults, values, and the dump of a checkout's parser.

Imports ``spec``.
Other packages use ``tables``, ``argv``, ``values``, ``schedule`` and ``command_error``.
"""
