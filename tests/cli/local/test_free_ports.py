"""Ports of servers are none that the kernel gives to outgoing connections, and each is reserved once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_megatron.cli.local.free_ports import free_port, port_of, reserve_port
from airflow_megatron.cli.local.local_airflow import LocalAirflow, LocalAirflowError

FIRST_OF_CONNECTIONS = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
ANOTHER_PROCESS = """\
import sys
from airflow_megatron.cli.local.free_ports import port_of, reserve_port
print(port_of(reserve_port(int(sys.argv[1]))))
"""


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


def test_a_reserved_port_is_given_to_nobody_else_and_a_server_can_use_it() -> None:
    async def serve(host: str, port: int) -> None:
        server = await asyncio.start_server(lambda reader, writer: None, host, port)
        assert free_port(port) != port
        server.close()

    with contextlib.closing(reserve_port()) as holder:
        port = port_of(holder)
        assert free_port(port) != port
        other = subprocess.run(
            [sys.executable, "-c", ANOTHER_PROCESS, str(port)], capture_output=True, text=True, check=True
        )
        assert int(other.stdout) != port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        for host in ("127.0.0.1", "0.0.0.0", "::"):
            asyncio.run(serve(host, port))
    assert free_port(port) == port


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "{taken}",
            "AIRFLOW__API__PORT: port {taken} of this machine is in use; write another one, or unset it",
        ),
        ("http", "AIRFLOW__API__PORT is 'http', not a port; write a number from 1 to 65535"),
        ("70000", "AIRFLOW__API__PORT is '70000', not a port; write a number from 1 to 65535"),
    ],
)
def test_a_port_of_the_user_that_cannot_be_used_is_refused(
    value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setenv("AIRFLOW__API__PORT", value.format(taken=taken))
        with pytest.raises(LocalAirflowError) as error:
            LocalAirflow(tmp_path).start()
    assert str(error.value) == message.format(taken=taken)


def test_airflow_gets_the_port_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("AIRFLOW__API__PORT", str(port))
    started: list[dict[str, str]] = []

    def popen(*_: object, env: dict[str, str], **__: object) -> None:
        started.append(env)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", popen)
    airflow = LocalAirflow(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        airflow.start()
    assert started[0]["AIRFLOW__API__PORT"] == str(port)
    assert airflow.address == f"http://localhost:{port}"
    airflow.stop()
