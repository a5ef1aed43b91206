"""Checks of single values: present, positive, in their range, a multiple of another value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from megatron_core_trainer.arguments.errors import ArgumentError

if TYPE_CHECKING:
    import argparse


def require(args: argparse.Namespace, *names: str) -> None:
    """Raise an error if arguments are missing.

    :raises ArgumentError: with their names.
    """
    missing = ["--" + name.replace("_", "-") for name in names if getattr(args, name) is None]
    if missing:
        raise ArgumentError(f"{', '.join(missing)} must be given")


def positive(args: argparse.Namespace, *names: str) -> None:
    """Raise an error if a given argument is not positive.

    :raises ArgumentError: with the name of the first one.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ArgumentError(f"--{name.replace('_', '-')} must be above zero, not {value}")


def not_negative(args: argparse.Namespace, *names: str) -> None:
    """Raise an error if a given argument is negative.

    :raises ArgumentError: with the name of the first one.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and not value >= 0:
            raise ArgumentError(f"--{name.replace('_', '-')} must not be negative, not {value}")


def finite(args: argparse.Namespace, *names: str) -> None:
    """Raise an error if a given argument is infinite or not a number.

    :raises ArgumentError: with the name of the first one.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and not math.isfinite(value):
            raise ArgumentError(f"--{name.replace('_', '-')} must be a finite number, not {value}")


def fraction(args: argparse.Namespace, *names: str, below_one: bool = False) -> None:
    """Raise an error if an argument is not between 0 and 1.

    :param below_one: whether 1 is not allowed.
    :raises ArgumentError: with the name of the first one.
    """
    for name in names:
        value = getattr(args, name)
        if not 0 <= value <= 1 or (below_one and value == 1):
            wanted = "in [0, 1)" if below_one else "between 0 and 1"
            raise ArgumentError(f"--{name.replace('_', '-')} must lie {wanted}, not {value}")


def divides(what: str, value: int, by: str, divisor: int) -> None:
    """Raise an error if a value is not a multiple of another.

    :param what: name of the value, for the error.
    :param by: name of the divisor.
    :raises ArgumentError: with both values.
    """
    if value % divisor:
        raise ArgumentError(f"{what} ({value}) must be a multiple of {by} ({divisor})")
