"""Print the arguments of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def print_args(args: argparse.Namespace, print_line: Any = print) -> None:
    """Print all arguments in alphabetical order, as upstream does.

    :param args: the run's arguments.
    :param print_line: called with every line.
    """
    print_line("------------------------ arguments ------------------------")
    for name in sorted(vars(args), key=str.lower):
        print_line(f"  {name} {'.' * max(3, 48 - len(name))} {getattr(args, name)}")
    print_line("-------------------- end of arguments ---------------------")
