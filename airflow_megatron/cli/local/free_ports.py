"""Choose ports of this machine for servers that start later."""

from __future__ import annotations

import random
import socket
from typing import Final

_RANGE: Final = range(10_000, 20_000)
"""Ports that the kernel gives to no outgoing connection: such a connection could take the port before the server does,
and one that waits for the server could be connected to itself. The local cluster's ports follow."""


def free_port(*wanted: int) -> int:
    """Return a TCP port on which nothing listens.

    :param wanted: ports to use if they are free
    :raises OSError: if no port is found
    """
    for port in (*wanted, *random.SystemRandom().sample(_RANGE, 100)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port among 100 of {_RANGE.start} to {_RANGE.stop - 1}")
