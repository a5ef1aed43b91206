"""Processor time of a command and of all processes that it started, including daemons."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_CHILD_SUBREAPER: Final = 36


def run_counted(words: Sequence[str]) -> tuple[int, float]:
    """Run a command, and wait for its end and for that of all processes that it leaves running.

    Processes whose parents have ended become children of this one, so nothing that has ended is missed; a caller should
    have no other children.

    :returns: exit status of the command, and seconds of all its processes
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = _used()
    process = subprocess.Popen(words)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda given, _: process.send_signal(given))
    status = 1
    while True:
        try:
            ended, code = os.wait()
        except ChildProcessError:
            return status, _used() - before
        if ended == process.pid:
            status = process.returncode = os.waitstatus_to_exitcode(code)


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
