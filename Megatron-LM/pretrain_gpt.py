#!/usr/bin/env python3
"""Train a GPT model with megatron-core: one process, or one per rank under torchrun or srun.

Flags (``--help``), log lines, checkpoints and exit behaviour are those of Megatron-LM core_v0.16.1.
"""

from __future__ import annotations

import time

_STARTED = time.time()

if __name__ == "__main__":
    import os
    import sys

    # Read when torch is loaded. Waiting threads should sleep instead of keeping another core busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from megatron_core_trainer.main import main

    sys.exit(main(sys.argv[1:], started=_STARTED))
