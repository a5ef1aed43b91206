"""Run inside the trainer's environment: print the learning rates that the trainer's schedule sets, step by step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "Megatron-LM"))

from megatron_core_trainer import arguments
from megatron_core_trainer.optimization.optimizer import build_scheduler

for line in sys.stdin:
    argv, steps = json.loads(line)
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    arguments.complete_args(args)
    groups = [
        {"params": []},
        {"params": [], "lr_mult": 0.5, "max_lr": 0.5 * args.lr, "min_lr": 0.5 * args.min_lr},
    ]
    scheduler = build_scheduler(args, SimpleNamespace(param_groups=groups))
    rates = []
    for _ in range(steps + 1):
        rates.append([group["lr"] for group in groups])
        scheduler.step(increment=args.global_batch_size)
    print(json.dumps(rates))
