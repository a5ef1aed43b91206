"""How long tests wait for daemons, jobs and tasks: as long as they may take on a machine that has other work, too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY: Final = 5
"""How many times as long as on an idle machine anything may take."""


def patient(seconds: float) -> float:
    """Return how long to wait for what takes less than *seconds* on an idle machine."""
    return BUSY * seconds


def deadline_in(seconds: float) -> float:
    """Return until when, by the monotonic clock, to wait for what takes less than *seconds* on an idle machine."""
    return time.monotonic() + patient(seconds)


def wait_until(true: Callable[[], object], seconds: float, what: str, interval: float = 0.5) -> None:
    """Wait until a condition holds.

    :param seconds: how long that takes at most on an idle machine
    :param interval: seconds between two looks
    :raises AssertionError: when it does not hold in time
    """
    deadline = deadline_in(seconds)
    while not true():
        assert time.monotonic() < deadline, f"waited {patient(seconds):.0f} s for {what}"
        time.sleep(interval)
