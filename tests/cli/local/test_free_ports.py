"""Ports of servers are none that the kernel gives to outgoing connections."""

from __future__ import annotations

import socket
from pathlib import Path

from airflow_megatron.cli.local.free_ports import free_port

FIRST_OF_CONNECTIONS = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_a_wanted_port_is_taken_when_it_is_free() -> None:
    port = free_port()
    assert free_port(port) == port


def test_another_port_belongs_to_no_connection() -> None:
    # a connection to a port that is also the connection's own is connected to itself, and no server can listen there
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert taken >= FIRST_OF_CONNECTIONS
        found = {free_port(taken) for _ in range(20)} | {free_port() for _ in range(20)}
    assert max(found) < FIRST_OF_CONNECTIONS
    assert len(found) > 30
