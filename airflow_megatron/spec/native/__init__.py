"""The project's spec language: grammar of ``sweep:``, stages, jobs, overrides, ``extends``, JSON Schema.

Imports ``model`` and the packages below.
Other packages use ``sweep``, ``overrides`` and ``json_schema``.
"""
