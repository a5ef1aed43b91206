"""Airflow commands in forks of processes that have imported Airflow, because imports take 8 of a command's 10 s."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER = Path(__file__).with_name("forked_airflow.py")


class WarmAirflow:
    """Runs ``airflow …`` without importing Airflow again, and waits for its end."""

    def __init__(self) -> None:
        self._servers: dict[frozenset[tuple[str, str]], _Server] = {}
        self._starting = threading.Lock()

    def run(self, words: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[int, str]:
        """Run a command in a separate session, and end all processes of the session afterwards.

        :param words: the arguments after ``airflow``
        :param timeout: maximum duration in seconds
        :returns: exit status, and standard output with standard error
        :raises subprocess.TimeoutExpired: with the output so far
        """
        configuration = frozenset(item for item in environment.items() if _read_at_import(item[0]))
        with self._starting:
            if configuration not in self._servers:
                self._servers[configuration] = _Server(environment)
        return self._servers[configuration].run(words, environment, timeout)

    def close(self) -> None:
        """End the processes that wait for commands."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()


def _read_at_import(name: str) -> bool:
    return name.startswith(("AIRFLOW__", "PYTHON")) or name == "AIRFLOW_HOME"


class _Server:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(SERVER)],
                # commands have environments of their own, and this process outlives what a command's may name
                env={
                    name: value
                    for name, value in environment.items()
                    if _read_at_import(name) or not name.startswith("AIRFLOW_")
                },
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._control.recv(16) == b"ready\n", "Airflow cannot be imported, or has started threads"

    def run(self, words: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[int, str]:
        ours, theirs = socket.socketpair()
        with ours, tempfile.TemporaryFile("w+", errors="replace") as output:
            with theirs:
                socket.send_fds(self._control, [b"x"], [theirs.fileno(), output.fileno()])
            request = {"words": list(words), "environment": dict(environment), "folder": str(Path.cwd())}
            ours.sendall(json.dumps(request).encode() + b"\n")
            ours.settimeout(timeout)
            with ours.makefile("r") as answers:
                command = int(answers.readline())
                try:
                    status = int(answers.readline())
                except TimeoutError:
                    raise subprocess.TimeoutExpired(list(words), timeout, _text(output)) from None
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(command, signal.SIGKILL)
            return status, _text(output)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


def _text(output: TextIO) -> str:
    output.seek(0)
    return output.read()
