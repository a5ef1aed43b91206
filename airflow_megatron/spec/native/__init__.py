"""The project's own language: grammar of ``sweep:``, stages, jobs, overrides, ``extends``, JSON Schema.

Imports ``model`` and the packages below.
Others use ``sweep``, ``overrides`` and ``json_schema``.
"""
