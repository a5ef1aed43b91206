"""Limits on processor time that allow for slow and busy machines."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

USUAL_LOOP: Final = 0.1
"""Processor time of the loop in :func:`slowness` on a processor of usual speed."""
MARGIN: Final = 3
"""A processor that other machines share can be this many times slower for some seconds; what a limit guards against,
such as quadratic time, takes far longer."""


def slowness() -> float:
    """Return how many times slower than usual this machine is now, at least 1: memory and caches are shared."""
    begin, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number
    return max(1.0, (time.process_time() - begin) / USUAL_LOOP)


def is_usual(used: float, seconds: float) -> bool:
    """Return whether used processor time agrees with what is usual, slow and busy machines allowed for."""
    return used < seconds * MARGIN or used < seconds * MARGIN * slowness()


@contextmanager
def processor_limit(seconds: float, what: str = "the block") -> Iterator[None]:
    """Fail if the block takes far more processor time than usual.

    :param seconds: what it may take on a processor of usual speed
    :param what: the work of the block, for the message
    """
    begin = time.process_time()
    yield
    used = time.process_time() - begin
    assert is_usual(used, seconds), f"{what} took {used:.2f} s"
