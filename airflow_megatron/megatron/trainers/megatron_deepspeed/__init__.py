"""The trainer ``megatron_deepspeed``: argonne-lcf/Megatron-DeepSpeed, its configuration file, scripts and log lines.

Imports ``trainers``, ``arguments``, ``rules`` and ``spec``.
Other packages find it by its name.
"""
