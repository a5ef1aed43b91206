"""Work during which Python's garbage collector pauses: what it makes exists until the command ends."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the collector, which would scan all objects again and again, and leave out afterwards what was made."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
