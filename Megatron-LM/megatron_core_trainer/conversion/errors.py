"""What keeps a conversion from being made."""

from __future__ import annotations


class ConversionError(Exception):
    """The checkpoint cannot be converted as asked; the text says why and what to give instead."""


class MismatchError(Exception):
    """The converted model does not compute what the original does."""
