"""Lists in environment variables by which the operator says what specs may name."""

from __future__ import annotations

import os


def listed(setting: str) -> tuple[str, ...]:
    """Return the words of an environment variable, separated by commas; none when it is not set."""
    return tuple(word.strip() for word in os.environ.get(setting, "").split(",") if word.strip())
