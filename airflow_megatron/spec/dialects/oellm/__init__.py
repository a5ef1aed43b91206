"""Files of oellm-autoexp: ``sweep:``, ``job:``, ``backend:`` and ``slurm:``, expanded to the same points.

Imports ``interpolation``, ``foreign``, ``native`` and the packages below.
Others reach it through ``spec.dialects``, and ``native`` for the import into native specs.
"""
