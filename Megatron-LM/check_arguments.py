#!/usr/bin/env python3
"""Print the command lines that pretrain_gpt.py would refuse, both with GPUs and without; needs no PyTorch.

    python check_arguments.py <COMMAND_LINES

Reads JSON lines ``{"argv": […], "world_size": n}`` and prints the error message of each, or null. A command line is
valid if it is valid either with GPUs or without. With ``"starter": "upstream_lr_finder.py"``, ``argv`` holds the
arguments after upstream's script, and only the arguments of the starter are checked. Values that come from a checkpoint
(``--use-checkpoint-args``) are not checked. Neither is whether files and packages exist: only the job can check that.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from megatron_core_trainer import arguments
from megatron_core_trainer.optimization import lr_finder_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def complete(argv: Sequence[str], world_size: int) -> argparse.Namespace:
    """Return the arguments of a command line that is valid with or without GPUs, with derived values where possible.

    :param argv: the arguments, without the program's name.
    :param world_size: number of processes.
    :raises ArgumentError: if it is refused in both cases.
    """
    try:
        return _complete(argv, world_size, has_cuda=False)
    except arguments.ArgumentError:
        return _complete(argv, world_size, has_cuda=True)


def _complete(argv: Sequence[str], world_size: int, *, has_cuda: bool) -> argparse.Namespace:
    args = arguments.parse_args(argv, world_size=world_size, has_cuda=has_cuda)
    if not args.use_checkpoint_args:
        arguments.complete_args(args)
    return args


def problem(argv: Sequence[str], world_size: int, starter: str | None = None) -> str | None:
    """Return why a command line is refused, None for a valid one.

    :param argv: the arguments, without the program's name.
    :param world_size: number of processes.
    :param starter: the program that starts upstream's script with them; None for this project's trainer.
    """
    if starter is not None:
        return lr_finder_options.problem(lr_finder_options.split(starter, argv)[0])
    try:
        complete(argv, world_size)
    except arguments.ArgumentError as error:
        return str(error)
    except ArithmeticError as error:
        return f"it cannot calculate with these values: {error}"
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(problem(**json.loads(line))))
