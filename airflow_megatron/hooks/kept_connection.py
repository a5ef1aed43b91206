"""One connection to a login node for consecutive remote commands of a task."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from airflow_megatron.slurm.remote.transport import CommandResult, Transport

MOST_IDLE_S: Final = 10.0
"""Idle seconds after which a connection is reopened, because it may be dead."""


class KeptConnection:
    """A connection that stays open between scripts in quick succession.

    A failed script is not repeated here, because only the caller knows whether it may run twice.

    :param connect: returns a transport
    """

    def __init__(self, connect: Callable[[], Awaitable[Transport]]) -> None:
        self._connect = connect
        self._runner = asyncio.Runner()
        self._transport: Transport | None = None
        self._used = 0.0

    def run(self, script: str, *, timeout: float) -> CommandResult:
        """Run a script, over a new connection unless one was used recently.

        :raises TransportError: if the outcome is unknown
        """
        if time.monotonic() - self._used > MOST_IDLE_S:
            self.close()
        try:
            result = self._runner.run(self._run(script, timeout))
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()
        return result

    def close(self) -> None:
        """Close the connection; the next script opens another."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with suppress(Exception):
                self._runner.run(transport.close())

    async def _run(self, script: str, timeout: float) -> CommandResult:
        if self._transport is None:
            self._transport = await self._connect()
        return await self._transport.run(script, timeout=timeout)


_kept: dict[Hashable, KeptConnection] = {}


def kept_connection(name: Hashable, connect: Callable[[], Awaitable[Transport]]) -> KeptConnection:
    """Return the named connection of this process and thread; it is closed when the process ends.

    :param name: unique name of the connection, derived from all inputs of ``connect``
    :param connect: as of :class:`KeptConnection`
    """
    key = (os.getpid(), threading.get_ident(), name)
    if key not in _kept:
        _kept[key] = KeptConnection(connect)
        atexit.register(_kept[key].close)
    return _kept[key]
