"""Whether a store of results answers; requests of the pages do not wait for one that does not.

The client of an object store that is away repeats its request for 13 s to some minutes. Each request of a page holds a
thread of the API server meanwhile, and some a session of Airflow's database, which the tasks need too.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from airflow_megatron.results.store.segments import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

PAUSE_S: Final = 30.0
"""Seconds after a failed read during which the store is not read again."""
LONGEST_S: Final = 20.0
"""Seconds after which a read keeps others from reading; the first read of a large sweep takes some."""


class StoreAnswers:
    """The reads of one store in this process; safe for use by several threads.

    :param shown: location of the store, for messages
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._reading: dict[object, float] = {}
        self._failed_until = 0.0

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, shown: str) -> StoreAnswers:
        """Return the reads of a store.

        :param shown: location of the store, for messages
        """
        return cls(shown)

    def check(self) -> None:
        """Check that the store can be read now.

        :raises StoreError: if it has failed a short time ago, or a read takes long
        """
        now = time.monotonic()
        began = min(list(self._reading.values()), default=now)
        if now < self._failed_until or now - began > LONGEST_S:
            raise StoreError(f"{self._shown} does not answer; it is read again later")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Observe a read.

        :raises StoreError: if the store cannot be read now
        """
        self.check()
        key = object()
        self._reading[key] = time.monotonic()
        try:
            yield
        except StoreError:
            self._failed_until = time.monotonic() + PAUSE_S
            raise
        finally:
            del self._reading[key]
