"""Base of the dialects: the YAML of OmegaConf, sidecars, and the structure of a foreign sweep.

Imports ``native``, ``model`` and the packages below.
The dialects use it; the plan and the checks read sidecars.
"""
