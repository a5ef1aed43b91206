"""Run a function on untrusted input in a separate process, with limits on processor time, memory and wall time.

The kernel enforces the limits, so they also end a computation inside C code, which an exception would not interrupt,
and one that overflows the C stack.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ANSWER_BYTES: Final = 32_000_000
_MAX_MESSAGE: Final = 2_000


@dataclass(frozen=True)
class Limits:
    """Limits on the resources of a function.

    :param processor_s: seconds of processor time
    :param memory_bytes: beside what the process holds already
    :param clock_s: seconds until it must have answered
    :param idle_s: seconds until it must have answered without those in which it waits for a processor: for input that
        is read slowly, or never, also on a busy machine
    """

    processor_s: float
    memory_bytes: int = 400_000_000
    clock_s: float = 60.0
    idle_s: float = 60.0


@dataclass(frozen=True)
class Isolated:
    """The result of a function.

    :param answers: its reported answers, in order; plain JSON data
    :param failure: what ended it early, empty if it ended by itself
    :param processor_s: seconds of processor time that it took
    :param out_of_time: whether more processor time might have helped
    :param too_slow: whether the wall time ended it, which on a busy machine does not depend on the input
    """

    answers: tuple[Any, ...]
    failure: str
    processor_s: float
    out_of_time: bool = False
    too_slow: bool = False


def run_isolated(function: Callable[[Callable[[Any], None]], None], limits: Limits) -> Isolated:
    """Run a function in a child process.

    :param function: its argument is a function that reports an answer (plain JSON data); reported answers count even
        if it is ended later
    :param limits: limits on its resources
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work(function, limits, reading, writing)
    os.close(writing)
    try:
        text, in_time = _received(reading, child, limits)
    finally:
        os.close(reading)
        # also if this process is interrupted, so that no child remains
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    processor_s = used.ru_utime + used.ru_stime
    answers, failure = _answers(text)
    if failure is None:
        failure = _end(status, limits, in_time)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    too_slow = not in_time or ended_by == signal.SIGALRM
    return Isolated(answers, failure, processor_s, ended_by == signal.SIGPROF, too_slow)


def printable(text: str) -> str:
    """Return text on one line that is safe for a database, a page and a terminal: no control characters, no
    surrogates.
    """
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _received(descriptor: int, child: int, limits: Limits) -> tuple[bytes, bool]:
    """Return what the child writes until it ends, and whether it ended in time."""
    begin = time.monotonic()
    parts: list[bytes] = []
    size = 0
    while size <= MAX_ANSWER_BYTES:
        passed = time.monotonic() - begin
        left = min(limits.clock_s - passed, limits.idle_s - (passed - _queued_s(child)))
        if left <= 0:
            break
        if select.select([descriptor], [], [], left)[0]:
            part = os.read(descriptor, 1 << 16)
            if not part:
                return b"".join(parts), True
            parts.append(part)
            size += len(part)
    return b"".join(parts), False


def _queued_s(process: int) -> float:
    """Return the seconds in which a process could run and had no processor; 0 where Linux does not count them."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _answers(text: bytes) -> tuple[tuple[Any, ...], str | None]:
    """Return the answers and the failure; None if the child did not finish."""
    answers: list[Any] = []
    for line in text.split(b"\n")[:-1]:
        kind, value = json.loads(line)
        if kind == "answer":
            answers.append(value)
        else:
            return tuple(answers), str(value)
    return tuple(answers), None


def _end(status: int, limits: Limits, in_time: bool) -> str:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return f"it takes more than {limits.processor_s:g} s of processor time"
    if not in_time or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM):
        return f"it takes more than {min(limits.clock_s, limits.idle_s):.3g} s"
    if os.WIFSIGNALED(status):
        return f"it ends the process that reads it ({signal.Signals(os.WTERMSIG(status)).name})"
    return "it ends the process that reads it"


def _work(
    function: Callable[[Callable[[Any], None]], None], limits: Limits, reading: int, writing: int
) -> NoReturn:
    """Run the function in the child, and end it without any of the parent's clean-up."""
    message = "it cannot be read"
    try:
        _restrict(limits, writing)

        def send(kind: str, value: Any) -> None:
            line = json.dumps([kind, value]).encode() + b"\n"
            while line:
                line = line[os.write(writing, line) :]

        try:
            function(lambda value: send("answer", value))
            message = ""
        except MemoryError:
            message = f"it takes more than {limits.memory_bytes / 1e6:.0f} MB of memory"
        except RecursionError:
            message = "its values are nested too deeply"
        except BaseException as error:
            message = f"it cannot be read: {printable(f'{type(error).__name__}: {error}')[:_MAX_MESSAGE]}"
        send("end", message)
    finally:
        os._exit(0)


def _restrict(limits: Limits, writing: int) -> None:
    """Set the limits, and reset the inherited state: signal handlers, files, the log."""
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.processor_s)
    signal.setitimer(signal.ITIMER_REAL, limits.clock_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = held + limits.memory_bytes
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))
    logging.disable(logging.CRITICAL)
    # a collection would copy the memory that is shared with the parent
    gc.freeze()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.closerange(3, writing)
    os.closerange(writing + 1, 65536)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
