"""Run Airflow's commands in forks of this process, which has imported the modules that take seconds to import.

Started by ``warm_airflow.WarmAirflow`` with an environment whose ``AIRFLOW…`` variables are those of the commands, as
Airflow reads some when it is imported. Standard input is a socket: each message passes the end of a connection, and the
file for the command's output. The connection then gives the request, a line of JSON; the answers are the command's
process id and its exit status, a line each. A fork runs ``airflow.__main__.main`` and ends as an interpreter does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading

PRELOADED = "airflow_megatron.airflow_commands.preloaded_command"


def main() -> None:
    """Serve requests until the other end is closed; return in a fork that is to run a command."""
    control = socket.socket(fileno=os.dup(0))
    importlib.import_module(PRELOADED)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert not others, f"threads that a fork would not have: {others}"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # this process does not wait for forks
    control.sendall(b"ready\n")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            os._exit(0)
        connection, output = descriptors
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer(connection, output)
            return
        os.close(connection)
        os.close(output)


def answer(connection: int, output: int) -> None:
    """Start the command of a request and send its result; return in the process of the command."""
    peer = socket.socket(fileno=connection)
    with peer.makefile("r") as lines:
        request = json.loads(lines.readline())
    command = os.fork()
    if command == 0:
        peer.close()
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for opened, descriptor in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(opened, descriptor)
        os.close(nothing)
        os.close(output)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.path.insert(0, request["folder"])
        sys.argv = [str(sys.modules["airflow.__main__"].__file__), *request["words"]]
        return
    with contextlib.suppress(BrokenPipeError):  # the client no longer waits
        peer.sendall(f"{command}\n".encode())
        _, status = os.waitpid(command, 0)
        peer.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
    sys.modules["airflow.__main__"].main()
