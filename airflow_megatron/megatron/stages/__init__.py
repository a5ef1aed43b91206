"""The stage kinds of this package, one class each; see :mod:`airflow_megatron.spec.model.stage_kinds`.

Imports ``arguments``, ``trainers``, ``commands`` and ``spec``.
Other packages find them by name in ``STAGE_KINDS``; their own kinds may extend ``TrainerStage`` or ``CheckpointStage``.
"""
