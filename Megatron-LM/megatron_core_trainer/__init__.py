"""A thin training driver over the ``megatron-core`` package.

It keeps upstream Megatron-LM's flag names, log lines, checkpoint layout and exit behaviour (release core_v0.16.1), so
that what reads one reads the other, and runs on CPUs over gloo as well as on GPUs.
"""
