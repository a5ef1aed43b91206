"""Run inside the trainer's environment, once per process: train with every optimizer that is named.

Takes the common arguments and those of each case as JSON; the last process prints one JSON line per case, its iteration
lines.
"""

from __future__ import annotations

import json
import sys

from in_process_training import iteration_lines, run, start
from megatron_core_trainer import distributed

base, cases = map(json.loads, sys.argv[1:])
start()
for name, extra in cases.items():
    lines = iteration_lines(run([*base, *extra]))
    if lines:
        print(json.dumps({"case": name, "lines": lines}), flush=True)
distributed.leave()
