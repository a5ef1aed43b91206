"""The container runtimes and launchers of this package, a class each; see :mod:`airflow_megatron.spec.model.launch`.

Imports nothing of ``slurm``.
Others get them by name from ``CONTAINER_RUNTIMES`` and ``LAUNCHERS``.
"""
