"""The options of a learning-rate search, for this trainer and ``upstream_lr_finder.py``."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_POINTS = 10
"""Steps of a search from which a learning rate can be read."""


def add_options(add_to: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare the options for the limits of the rates, the smoothing of the losses and the end of the search.

    :param add_to: a parser, or a group of one.
    """
    add = add_to.add_argument
    add("--lr-finder-start-lr", type=float, default=1e-6)
    add("--lr-finder-end-lr", type=float, default=1.0)
    add("--lr-finder-smoothing", type=float, default=0.98, help="beta of the losses' moving average")
    add(
        "--lr-finder-stop-factor",
        type=float,
        default=4.0,
        help="stop when the smoothed loss exceeds its best by this factor; 0: never",
    )


def problem(args: argparse.Namespace) -> str | None:
    """Return the error in the options, None if they are valid.

    :param args: arguments with the options of :func:`add_options`.
    """
    if not 0 < args.lr_finder_start_lr < args.lr_finder_end_lr:
        return (
            f"--lr-finder-start-lr ({args.lr_finder_start_lr}) must be above zero and below --lr-finder-end-lr"
            f" ({args.lr_finder_end_lr})"
        )
    if math.isinf(args.lr_finder_end_lr):
        return f"--lr-finder-end-lr ({args.lr_finder_end_lr}) must be finite"
    if not 0 <= args.lr_finder_smoothing < 1:
        return f"--lr-finder-smoothing must lie in [0, 1), not {args.lr_finder_smoothing}"
    if args.lr_finder_stop_factor != 0 and not args.lr_finder_stop_factor >= 1:
        return (
            f"--lr-finder-stop-factor ({args.lr_finder_stop_factor}) must be 0, for never, or at least 1: with less the"
            " search would end after its first step"
        )
    return None


def split(program: str, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the starter, and the remaining arguments for upstream's script.

    :param program: the starter's name, for its messages.
    :param words: the arguments after the script's name.
    """
    parser = argparse.ArgumentParser(prog=program, add_help=False, allow_abbrev=False)
    parser.add_argument("--lr-finder-save", required=True)
    add_options(parser)
    return parser.parse_known_args(words)
