"""Waiting for programs on a machine that may be busy with something else."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable


class Patience:
    """Waits for a program as long as it works; gives up when it stands still or has worked too much in vain.

    On an idle machine a program that is given ``work`` seconds of processor time takes about as long; on a busy one it
    takes as much longer as the others leave it less.

    :param pid: the program; what it starts counts too
    :param work: seconds of processor time that it may use
    :param still: seconds of wall time without any processor time after which it stands still
    """

    def __init__(
        self, pid: int, work: float, still: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pid, self.work, self.still = pid, work, still
        self._clock = clock
        self._begin = self._last = processor_seconds(pid)
        self._moved = clock()

    def lasts(self) -> bool:
        """Return whether to wait on."""
        used = processor_seconds(self.pid)
        if used > self._last:
            self._last, self._moved = used, self._clock()
        return self._last - self._begin < self.work and self._clock() - self._moved < self.still


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process, of those that it has started, and of their ended children."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
