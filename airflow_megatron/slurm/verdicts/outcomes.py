"""The ways an attempt can end."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    """The stage has achieved what it was to achieve."""
    ROLLED_OVER = "rolled_over"
    """Stopped in good order before the end (walltime, SIGTERM, ``--exit-duration-in-mins``): goes on in a new
    attempt."""
    RETRYABLE = "retryable"
    """Lost through no fault of its own (node failure, preemption, boot failure)."""
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """By a person."""
    DUPLICATE = "duplicate"
    """Did not run: another job owns the attempt."""
    ACTIVE = "active"
    """Not a verdict: queued or running."""
    UNKNOWN = "unknown"
    """Not a verdict: nothing certain is known; wait."""

    @property
    def is_verdict(self) -> bool:
        """Whether the attempt is over."""
        return self not in {Outcome.ACTIVE, Outcome.UNKNOWN}
