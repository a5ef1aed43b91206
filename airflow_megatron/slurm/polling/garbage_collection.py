"""Short garbage collections in a process that watches thousands of jobs.

Python's collector stops the process while it scans all long-lived objects: 200 ms in a triggerer that watches 5,000
jobs, half of it for the modules of Airflow. While jobs are watched, almost none of them become garbage, so they
are moved out of the collector's reach (:func:`gc.freeze`). Reference counting still frees them; reference cycles are
collected when no job is watched any more.
"""

from __future__ import annotations

import gc
from typing import Final

MANY: Final = 200
"""Minimum number of watched jobs; with fewer, nothing is frozen."""

_GROWTH: Final = 1.25


class CollectorFreeze:
    """Freezes the long-lived objects of the process; there is one instance for each process."""

    def __init__(self) -> None:
        self._watchers = 0

    def shorten(self, watchers: int) -> None:
        """Freeze all objects if the number of watched jobs has grown by a quarter since the last time.

        :param watchers: current number of watched jobs
        """
        if watchers >= max(MANY, self._watchers * _GROWTH):
            gc.freeze()
            self._watchers = watchers

    def end(self) -> None:
        """Unfreeze all objects, because no job is watched any more."""
        if self._watchers:
            gc.unfreeze()
            self._watchers = 0


PAUSES: Final = CollectorFreeze()
