"""The ways an attempt can end."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

NAN_IN_TRAINING: Final = "nan_in_training"
"""Signature of an attempt that ended because a loss or gradient was not a number."""


class Outcome(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    """The stage has reached its goal."""
    ROLLED_OVER = "rolled_over"
    """Stopped regularly before the end (walltime, SIGTERM, ``--exit-duration-in-mins``); a new attempt continues it."""
    RETRYABLE = "retryable"
    """Ended by an external cause (node failure, preemption, boot failure)."""
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Cancelled by a user."""
    DUPLICATE = "duplicate"
    """Did not run: another job owns the attempt."""
    ACTIVE = "active"
    """Not a verdict: queued or running."""
    UNKNOWN = "unknown"
    """Not a verdict: the state is uncertain; wait."""

    @property
    def is_verdict(self) -> bool:
        """Whether the attempt is over."""
        return self not in {Outcome.ACTIVE, Outcome.UNKNOWN}
