"""Short garbage collections in a process that watches thousands of jobs.

Python's collector stops the process while it goes over all objects that live long: 200 ms in a triggerer that watches
5,000 jobs, half of them for what Airflow has loaded. As long as the jobs are watched next to nothing of it becomes
garbage, so it is put where the collector does not look (:func:`gc.freeze`). References that are counted down to zero
free their objects there too; what is left in cycles is collected once nobody is watched.
"""

from __future__ import annotations

import gc
from typing import Final

MANY: Final = 200
"""With fewer watchers nothing is put aside."""

_GROWTH: Final = 1.25


class CollectionPauses:
    """What of a process's objects is put aside; one for the process."""

    def __init__(self) -> None:
        self._watchers = 0

    def shorten(self, watchers: int) -> None:
        """Put everything that lives aside, when the watchers have become a quarter more since the last time.

        :param watchers: how many there are
        """
        if watchers >= max(MANY, self._watchers * _GROWTH):
            gc.freeze()
            self._watchers = watchers

    def end(self) -> None:
        """Give everything back to the collector: nobody is watched any more."""
        if self._watchers:
            gc.unfreeze()
            self._watchers = 0


PAUSES: Final = CollectionPauses()
