"""What a sweep will run: all jobs with their commands, checked and pinned.

Imports ``checks``, ``requirements``, ``results`` and the layers below; no Airflow.
Others use ``sweep_plan``, ``pinned`` and ``overview``.
"""
