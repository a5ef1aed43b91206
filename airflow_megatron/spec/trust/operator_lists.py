"""Environment variables in which the operator lists the names that specs may use."""

from __future__ import annotations

import os


def listed(setting: str) -> tuple[str, ...]:
    """Return the words of an environment variable, separated by commas; none if it is not set."""
    return tuple(word.strip() for word in os.environ.get(setting, "").split(",") if word.strip())
