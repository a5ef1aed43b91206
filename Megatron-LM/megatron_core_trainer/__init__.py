"""A thin training driver over the ``megatron-core`` package.

It keeps the flag names, log lines, checkpoint layout and exit behaviour of upstream Megatron-LM (release core_v0.16.1),
so that programs that read upstream's output can read its output. It runs on GPUs, and on CPUs over gloo.
"""

import atexit
import gc

# torch, megatron-core and transformers create a million objects while they are imported, all of which live as long as
# the process. With the default of 700, the collector would scan them again and again before a job begins its work.
gc.set_threshold(50_000)
# The interpreter collects them a last time when it ends, which takes a second, although the process gives all memory
# back. Frozen objects are not visited. This is registered first, so it runs after the exit functions of libraries.
atexit.register(gc.freeze)
