"""Pause Python's garbage collector during work whose objects exist until the command ends."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the collector, which would scan all objects repeatedly; afterwards exclude the new objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
