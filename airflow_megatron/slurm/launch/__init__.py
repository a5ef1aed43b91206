"""The container runtimes and launchers of this package, one class each; see :mod:`airflow_megatron.spec.model.launch`.

Imports ``spec``.
Other packages look them up by name in ``CONTAINER_RUNTIMES`` and ``LAUNCHERS``.
"""
