"""The root of this package's errors."""

from __future__ import annotations


class AirflowMegatronError(Exception):
    """Base of every error that this package raises on purpose; catch it to catch them all."""


class RegistryError(AirflowMegatronError, RuntimeError):
    """A class that another package registers is invalid."""
