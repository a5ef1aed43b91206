"""Checks of single values: given, above zero, a multiple of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron_core_trainer.arguments.errors import ArgumentError

if TYPE_CHECKING:
    import argparse


def require(args: argparse.Namespace, *names: str) -> None:
    """Refuse arguments that were not given.

    :raises ArgumentError: naming them.
    """
    missing = ["--" + name.replace("_", "-") for name in names if getattr(args, name) is None]
    if missing:
        raise ArgumentError(f"{', '.join(missing)} must be given")


def positive(args: argparse.Namespace, *names: str) -> None:
    """Refuse given arguments that are not above zero.

    :raises ArgumentError: naming the first.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ArgumentError(f"--{name.replace('_', '-')} must be above zero, not {value}")


def divides(what: str, value: int, by: str, divisor: int) -> None:
    """Refuse a value that is not a multiple of another.

    :param what: name of the value, for the error.
    :param by: name of the divisor.
    :raises ArgumentError: with both.
    """
    if value % divisor:
        raise ArgumentError(f"{what} ({value}) must be a multiple of {by} ({divisor})")
