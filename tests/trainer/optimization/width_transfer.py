"""Run inside the trainer's environment: what training changes in models of several widths, and how well they learn.

Reads ``{case: argv}`` from standard input and prints a JSON line per case: per block and for the logits the root mean
square of what training changed in them for one batch, the mean loss of the last five iterations, and per parameter the
learning rate, the weight decay and the epsilon of its group, as multiples of the command line's.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import TYPE_CHECKING

from in_process_training import built, iteration_lines, start
from megatron_core_trainer import distributed

import torch  # isort: skip - after the device is prepared

if TYPE_CHECKING:
    from megatron_core_trainer.training import Trainer


def coordinates(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the outputs of the blocks and the output layer for a fixed batch."""
    found: dict[str, torch.Tensor] = {}
    tokens = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(1))
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            if name.rpartition(".")[0].endswith("decoder.layers") or name.endswith("output_layer"):

                def keep(_: object, __: object, output: tuple[torch.Tensor, ...], name: str = name) -> None:
                    found[name.rpartition(".")[2]] = output[0]

                hooks.enter_context(module.register_forward_hook(keep))
        model(tokens, torch.arange(64).expand_as(tokens), None)
    return found


def groups(trainer: Trainer) -> dict[str, list[float]]:
    """Return the factors of learning rate, weight decay and epsilon of each parameter's group."""
    args, names = trainer._args, {id(value): name for name, value in trainer._model.named_parameters()}
    return {
        names[id(parameter)].removeprefix("module."): [
            group["max_lr"] / args.lr,
            group["wd_mult"],
            group["eps"] / args.adam_eps if "eps" in group else 1.0,
        ]
        for part in trainer._optimizer.chained_optimizers
        for group in part.optimizer.param_groups
        for parameter in group["params"]
    }


start()
for case, argv in json.load(sys.stdin).items():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        trainer = built(argv)
        before = coordinates(trainer._model)
        trainer.run()
        after = coordinates(trainer._model)
    losses = [float(loss) for _, loss, _ in iteration_lines(printed.getvalue()).values()]
    outcome = {
        "case": case,
        "moved": {name: float((after[name] - before[name]).square().mean().sqrt()) for name in before},
        "loss": sum(losses[-5:]) / 5,
        "groups": groups(trainer),
    }
    print(json.dumps(outcome), flush=True)
distributed.leave()
