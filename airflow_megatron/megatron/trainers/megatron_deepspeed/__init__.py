"""The trainer ``megatron_deepspeed``: argonne-lcf/Megatron-DeepSpeed, its configuration file, entries and log lines.

Imports ``trainers``, ``arguments`` and ``rules``.
Others get it by its name.
"""
