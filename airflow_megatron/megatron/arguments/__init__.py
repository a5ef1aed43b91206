"""Megatron's arguments per trainer and release: tables, defaults, values, and the dump of a checkout's parser.

Imports ``spec``.
Others use ``tables``, ``values``, ``trainers`` and ``schedule``.
"""
