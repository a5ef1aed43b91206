"""A lock on a file that a coroutine waits for."""

from __future__ import annotations

import asyncio
import fcntl
from typing import Final

LOCK_PAUSE_S: Final = 0.1


async def lock_file(file: int) -> None:
    """Take the exclusive lock of an open file; other coroutines run in the meantime.

    No thread waits for it: a thread would hold the lock when its caller was cancelled.

    :param file: its descriptor; closing it releases the lock
    """
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(LOCK_PAUSE_S)
        else:
            return
