"""AutoExperiment files: grammar, YAML, expressions, points and jobs, as that tool reads them.

Imports ``foreign``, ``native`` and the packages below.
Others reach it through ``spec.dialects`` only.
"""
