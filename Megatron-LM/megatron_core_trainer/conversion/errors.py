"""Errors of conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConversionError(Exception):
    """The checkpoint cannot be converted as asked; the text says why and what to give instead."""


class InexpressibleError(ConversionError):
    """No Hugging Face class can express the model.

    :param problem: which class comes nearest, and what it cannot express.
    :param settings: names of the settings in its way.
    :param hint: what to give instead; empty where there is nothing to say.
    """

    def __init__(self, problem: str, settings: Sequence[str], hint: str = "") -> None:
        super().__init__(f"{problem}. {hint}" if hint else problem)
        self.problem = problem
        self.settings = tuple(settings)


class MismatchError(Exception):
    """The converted model does not compute what the original does."""
