"""Wait for programs to start, on a machine that may be busy."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable


class StartupWait:
    """Limits the wait for a program by its processor time instead of by wall time.

    On an idle machine, ``work`` seconds of processor time take about as many seconds; on a busy machine they take
    longer.

    :param pid: process id of the program; its children count too
    :param work: limit of processor time in seconds
    :param still: limit of wall time in seconds without any use of processor time
    """

    def __init__(
        self, pid: int, work: float, still: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pid, self.work, self.still = pid, work, still
        self._clock = clock
        self._begin = self._last = processor_seconds(pid)
        self._moved = clock()

    def lasts(self) -> bool:
        """Return whether to continue waiting."""
        used = processor_seconds(self.pid)
        if used > self._last:
            self._last, self._moved = used, self._clock()
        return self._last - self._begin < self.work and self._clock() - self._moved < self.still


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants in seconds, including ended children."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
