"""Files of oellm-autoexp: ``sweep:``, ``job:``, ``backend:`` and ``slurm:``, expanded to the same points.

Imports ``interpolation``, ``foreign`` and the packages below.
Other packages use it through ``spec.dialects``; ``spec.oellm_import`` uses ``native`` to write native specs.
"""
