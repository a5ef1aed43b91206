"""The stage kinds of this package, a class each; see :mod:`airflow_megatron.spec.model.stage_kinds`.

Imports ``arguments`` and ``commands``.
Others get them by name from ``STAGE_KINDS``; kinds of other packages may extend ``TrainerStage``, ``CheckpointStage``.
"""
