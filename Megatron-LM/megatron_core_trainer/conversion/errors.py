"""Errors of conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConversionError(Exception):
    """The checkpoint cannot be converted as requested; the message has the reason and a hint."""


class InexpressibleError(ConversionError):
    """No Hugging Face class can express the model.

    :param problem: the closest class, and what it cannot express.
    :param settings: names of the settings that prevent the conversion.
    :param hint: what to give instead; may be empty.
    """

    def __init__(self, problem: str, settings: Sequence[str], hint: str = "") -> None:
        super().__init__(f"{problem}. {hint}" if hint else problem)
        self.problem = problem
        self.settings = tuple(settings)


class MismatchError(Exception):
    """The converted model computes different logits than the original."""
