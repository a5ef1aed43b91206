"""Error of a command line that cannot work."""

from __future__ import annotations


class ArgumentError(Exception):
    """A command line that cannot work; the text names the flag and the hint."""
