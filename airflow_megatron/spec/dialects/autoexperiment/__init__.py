"""AutoExperiment files: grammar, YAML, expressions, points and jobs, with the semantics of that tool.

Imports ``foreign``, ``native`` and the packages below.
Other packages use it only through ``spec.dialects``.
"""
