#!/usr/bin/env python3
"""Print the command lines that pretrain_gpt.py would refuse, both with GPUs and without; needs no PyTorch.

    python check_arguments.py <COMMAND_LINES

Reads JSON lines ``{"argv": […], "world_size": n}`` and prints the error messages of each as a list, or null. A command
line is valid if it is valid either with GPUs or without. With ``"starter": "upstream_lr_finder.py"``, ``argv`` holds
the arguments after upstream's script, and only the arguments of the starter are checked. Values that come from a
checkpoint (``--use-checkpoint-args``) are not checked. Neither is whether files and packages exist: only the job can
check that.
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


def problems(argv: Sequence[str], world_size: int, starter: str | None = None) -> list[str] | None:
    """Return why a command line is refused, None for a valid one.

    :param argv: the arguments, without the program's name.
    :param world_size: number of processes.
    :param starter: the program that starts upstream's script with them; None for this project's trainer.
    """
    if starter is not None:
        found = lr_finder_options.problem(lr_finder_options.split(starter, argv)[0])
        return None if found is None else [found]
    try:
        refused = _refused(argv, world_size, has_cuda=False) and _refused(argv, world_size, has_cuda=True)
    except ArithmeticError as error:
        return [f"it cannot calculate with these values: {error}"]
    return refused or None


def _refused(argv: Sequence[str], world_size: int, *, has_cuda: bool) -> list[str]:
    try:
        args = arguments.parse_args(argv, world_size=world_size, has_cuda=has_cuda)
    except arguments.ArgumentError as error:
        return [str(error)]
    found = [] if args.use_checkpoint_args else arguments.argument_problems(args)
    return list(dict.fromkeys(map(str, found)))


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(problems(**json.loads(line))))
