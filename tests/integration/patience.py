"""Timeouts of tests for daemons, jobs and tasks, which allow for other load on the machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

BUSY: Final = 5
"""How many times as long as on an idle machine anything may take."""


def patient(seconds: float) -> float:
    """Return the timeout for an operation that takes less than *seconds* on an idle machine."""
    return BUSY * seconds


def deadline_in(seconds: float) -> float:
    """Return the deadline, on the monotonic clock, for an operation of less than *seconds* on an idle machine."""
    return time.monotonic() + patient(seconds)


def wait_until(true: Callable[[], object], seconds: float, what: str, interval: float = 0.5) -> None:
    """Wait until a condition holds.

    :param seconds: maximum time on an idle machine
    :param interval: seconds between two checks
    :raises AssertionError: if it does not hold in time
    """
    deadline = deadline_in(seconds)
    while not true():
        assert time.monotonic() < deadline, f"waited {patient(seconds):.0f} s for {what}"
        time.sleep(interval)


def read_until(process: subprocess.Popen[str], text: str, seconds: float) -> str:
    """Read the output of a process until a line contains a text; return all lines up to it.

    :param process: leader of its own process group, which is killed if the text does not come in time
    :param seconds: maximum time on an idle machine
    :raises AssertionError: if the output ends without the text
    """

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert process.stdout is not None
    timer = threading.Timer(patient(seconds), end)
    timer.start()
    output = ""
    try:
        for line in process.stdout:
            output += line
            if text in line:
                return output
    finally:
        timer.cancel()
    raise AssertionError(f"no {text!r} within {patient(seconds):.0f} s:\n{output[-4000:]}")
