#!/usr/bin/env python3
"""Print which command lines pretrain_gpt.py would refuse, wherever it is going to run; PyTorch is not needed.

    python check_arguments.py <COMMAND_LINES

Reads JSON lines ``{"argv": […], "world_size": n}``; prints for each the error's text, or null. A command line that is
good on GPUs or without is good. With ``"starter": "upstream_lr_finder.py"`` the arguments are those after upstream's
script, of which only the starter's own are looked at. What comes from a checkpoint (``--use-checkpoint-args``), and
only the job itself can find out whether files and packages exist.
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
    """Return the arguments of a command line that is good on GPUs or without, completed as far as it says all.

    :param argv: the arguments, without the program's name.
    :param world_size: number of processes.
    :raises ArgumentError: for one that is refused on either.
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
    """Return why a command line is refused, None for a good one.

    :param argv: the arguments, without the program's name.
    :param world_size: number of processes.
    :param starter: what starts upstream's script with them, None for this project's own.
    """
    if starter is not None:
        return lr_finder_options.problem(lr_finder_options.split(starter, argv)[0])
    try:
        complete(argv, world_size)
    except arguments.ArgumentError as error:
        return str(error)
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(problem(**json.loads(line))))
