"""Airflow commands in forks of one process that has imported Airflow.

Before its first task, an ``airflow dags test`` takes 5 s of processor time: it imports Airflow, and creates the routes
of Airflow's API, because it contains a server of its own. The fork server of :mod:`multiprocessing` does that once for
all commands of a process. If its socket cannot be created, each command is a new process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final

from airflow_megatron.airflow_commands.run_command import run_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

_PRELOADED: Final = "airflow_megatron.airflow_commands.preloaded_command"
_LONGEST_FOLDER: Final = 107 - len("/pymp-12345678/listener-12345678")
"""Maximum length of the folder for temporary files in which a fork server can create its socket (unix(7))."""


class ForkedCommand:
    """An Airflow command in a process of its own, with the folder and the import paths of this process.

    Its environment is that of this process at the first command, and its standard input is empty.

    :param words: the arguments after ``airflow``
    """

    def __init__(self, *words: str) -> None:
        has_socket = len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER
        processes = get_context("forkserver") if has_socket else get_context("spawn")
        processes.set_forkserver_preload([_PRELOADED])
        self._output, written = processes.Pipe(duplex=False)
        self._process = processes.Process(target=_run, args=(words, written))
        self._process.start()
        written.close()

    def lines(self) -> Iterator[str]:
        """Yield each line of standard output and standard error until both are closed.

        The output may contain text of other programs, in any encoding.
        """
        with self._output, open(self._output.fileno(), errors="replace", closefd=False) as lines:
            yield from lines

    def exit_status(self) -> int:
        """Wait for the end, and return the exit status; negative: the signal that ended the process.

        Call it in one thread only.
        """
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def terminate(self) -> None:
        """Send a SIGTERM, unless the process has ended."""
        self._process.terminate()

    def wait(self, longest_s: float) -> None:
        """Wait for the end, but not longer than a number of seconds."""
        wait([self._process.sentinel], longest_s)


def _run(words: Sequence[str], output: Connection) -> None:
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output.fileno(), stream.fileno())
    output.close()
    run_command(words)
