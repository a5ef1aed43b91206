"""Reserve ports of this machine for servers that start later."""

from __future__ import annotations

import random
import socket
from typing import Final

_RANGE: Final = range(10_000, 20_000)
"""Ports that the kernel gives to no outgoing connection: such a connection could take the port before the server does,
and one that waits for the server could be connected to itself. The local cluster's ports follow."""


def reserve_port(*wanted: int, others: bool = True) -> socket.socket:
    """Return a socket that reserves a TCP port on which nothing listens, until it is closed.

    No other call reserves the port, in any process. A server that sets SO_REUSEADDR, as asyncio's and uvicorn's do, can
    listen on it meanwhile.

    :param wanted: ports to use if they are free
    :param others: whether to use another port if none of these is free
    :raises OSError: if no port is found
    """
    for port in (*wanted, *(random.SystemRandom().sample(_RANGE, 100) if others else ())):
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", port))  # without SO_REUSEADDR: it fails at another reservation
        except (OSError, OverflowError):
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder
    if not others:
        raise OSError(f"port {', '.join(map(str, wanted))} of this machine is in use")
    raise OSError(f"no free port among 100 of {_RANGE.start} to {_RANGE.stop - 1}")


def port_of(holder: socket.socket) -> int:
    """Return the number of a reserved port."""
    return int(holder.getsockname()[1])


def free_port(*wanted: int) -> int:
    """Return a TCP port on which nothing listens, without reserving it.

    :param wanted: as in :func:`reserve_port`
    :raises OSError: if no port is found
    """
    with reserve_port(*wanted) as holder:
        return port_of(holder)
