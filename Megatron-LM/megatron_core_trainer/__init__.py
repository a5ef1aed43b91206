"""A thin training driver over the ``megatron-core`` package.

It keeps the flag names, log lines, checkpoint layout and exit behaviour of upstream Megatron-LM (release core_v0.16.1),
so that programs that read upstream's output can read its output. It runs on GPUs, and on CPUs over gloo.
"""
