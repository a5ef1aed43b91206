"""Error of an invalid command line."""

from __future__ import annotations


class ArgumentError(Exception):
    """An invalid command line; the message has the flag and a hint."""
