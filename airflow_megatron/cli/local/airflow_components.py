"""Run the components of the local Airflow: ``python -m airflow_megatron.cli.local.airflow_components``.

``airflow standalone`` starts the same commands, but before that it compares the database with all migrations, and each
component imports Airflow, which takes seconds. Here one process imports it, and what sweeps need, and the components
are its forks. As there, the components go on if one of them ends, and each line of their output begins with the name of
its component.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final

from airflow_megatron.airflow_commands.run_command import collect_seldom

COMPONENTS: Final = ("scheduler", "dag-processor", "api-server", "triggerer")
"""Commands of Airflow."""
_IMPORTED_ONCE: Final = (
    "setproctitle",
    "airflow.__main__",
    "airflow.jobs.scheduler_job_runner",
    "airflow.jobs.triggerer_job_runner",
    "airflow.jobs.dag_processor_job_runner",
    "airflow.executors.local_executor",
)
"""Modules of Airflow that all components import, or that few import and that take little time."""


def main() -> None:
    """Start all components, and return when all have ended.

    Afterwards this process ignores SIGTERM, which may go to the whole process group: a component that logs its end into
    a pipe without a reader fails there, and goes on.
    """
    collect_seldom()
    with suppress(ImportError):  # the components report it
        _import()
    gc.freeze()
    started: list[tuple[str, int, int]] = []
    for name in COMPONENTS:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            for _, _, output in (*started, (name, pid, ours)):
                os.close(output)
            _run(name, theirs)
            return
        os.close(theirs)
        started.append((name, pid, ours))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    readers = [threading.Thread(target=_copy, args=component) for component in started]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def _import() -> None:
    for module in _IMPORTED_ONCE:
        importlib.import_module(module)
    from airflow_megatron.ui.preloading import OF_READERS, OF_TASKS, OF_TRIGGERS

    for module in (*OF_READERS, *OF_TASKS, *OF_TRIGGERS):
        importlib.import_module(module)


def _run(name: str, output: int) -> None:
    """Run a component in this process until it ends.

    :param output: file descriptor of a pipe
    """
    for standard in (sys.stdout, sys.stderr):
        os.dup2(output, standard.fileno())
    os.close(output)
    sys.argv = ["airflow", name]
    from airflow.__main__ import main as run
    from setproctitle import setproctitle

    os.environ["SPT_NOENV"] = "1"  # the environment of the process stays readable
    setproctitle(" ".join(sys.argv))
    del os.environ["SPT_NOENV"]
    run()  # type: ignore[no-untyped-call]


def _copy(name: str, pid: int, output: int) -> None:
    """Copy a component's output, and wait for its end."""
    prefix = f"{name:13} | ".encode()
    with open(output, "rb") as lines:
        for line in lines:
            with suppress(OSError):  # on a full disk lines are lost, but the components go on
                os.write(sys.stdout.fileno(), prefix + line)  # one call, so that lines are not mixed
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
