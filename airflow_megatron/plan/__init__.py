"""Plans of sweeps: all jobs with their commands, checked and pinned.

Imports ``checks``, ``requirements``, ``results`` and the layers below; no Airflow.
Others use ``sweep_plan``, ``pinned`` and ``overview``.
"""
