"""An interpreter of the trainer's environment that has loaded torch and megatron-core, and runs scripts in forks."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER = Path(__file__).with_name("forked_scripts.py")


class WarmInterpreter:
    """Runs scripts without loading torch for each, which takes most of the time of a short training.

    :param python: the interpreter
    """

    def __init__(self, python: Path) -> None:
        self.python = python
        self._server: subprocess.Popen[str] | None = None

    def run(
        self,
        script: Path,
        arguments: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        timeout: float,
    ) -> list[tuple[int, str, str]]:
        """Run a script in processes side by side; return exit status, standard output and error of each.

        :param environments: of each process
        :param timeout: seconds until all must have ended
        """
        with tempfile.TemporaryDirectory() as name:
            outputs = [[Path(name, f"{rank}.{kind}") for kind in "oe"] for rank in range(len(environments))]
            processes = [
                {"stdout": str(out), "stderr": str(err), "environment": dict(environment)}
                for (out, err), environment in zip(outputs, environments, strict=True)
            ]
            statuses = self._answer(
                {"script": str(script), "arguments": list(arguments), "processes": processes}, timeout
            )
            texts = [[path.read_text() for path in pair] for pair in outputs]
        return [(status, out, err) for status, (out, err) in zip(statuses, texts, strict=True)]

    def _answer(self, request: object, timeout: float) -> list[int]:
        server = self._server = self._server or self._started()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(server.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                self.close()
                raise subprocess.TimeoutExpired(server.args, timeout)
        line = server.stdout.readline()
        assert line, "the interpreter that runs scripts in forks has ended"
        return list(json.loads(line))

    def _started(self) -> subprocess.Popen[str]:
        server = subprocess.Popen(
            [str(self.python), "-W", "ignore", str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"  # no part of any script's time
        return server

    def close(self) -> None:
        """End the interpreter and its scripts."""
        if self._server is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._server = None
