"""Airflow's daemons, killed one by one and restarted as by a supervisor (systemd, Kubernetes)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
from sweep_site import SiteAirflow, kill_group

if TYPE_CHECKING:
    from pathlib import Path

QUICK_RECOVERY = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "3",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
}
"""Seconds after which Airflow takes a silent daemon or task for dead; its defaults are minutes."""


class FaultyAirflow(SiteAirflow):
    """Airflow whose scheduler and triggerer can be killed and started again.

    :param home: its home.
    :param folders: environment variables with the folders.
    """

    daemons: tuple[str, ...] = ("scheduler", "triggerer")

    def __init__(self, home: Path, folders: dict[str, str]) -> None:
        super().__init__(home, folders)
        self._started: list[subprocess.Popen[bytes]] = []

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **QUICK_RECOVERY}

    def daemon(self, name: str) -> psutil.Process:
        """Return the process of ``scheduler`` or ``triggerer``."""
        for root in (self._process, *self._started):
            assert root is not None
            with suppress(psutil.NoSuchProcess):
                for process in (psutil.Process(root.pid), *psutil.Process(root.pid).children()):
                    if process.status() == psutil.STATUS_ZOMBIE:
                        continue
                    if " ".join(process.cmdline()).split()[-1:] == [name]:
                        return process
        raise AssertionError(f"no {name} runs")

    def runs(self, name: str) -> bool:
        """Return whether ``scheduler`` or ``triggerer`` runs."""
        try:
            self.daemon(name)
        except AssertionError:
            return False
        return True

    def kill_daemon(self, name: str, *, with_children: bool) -> dict[str, str]:
        """SIGKILL a daemon; return its environment.

        :param with_children: also kill its tasks and trigger runner, as when a container is stopped.
        """
        process = self.daemon(name)
        environment, victims = process.environ(), [process]
        if with_children:
            victims += process.children(recursive=True)
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        psutil.wait_procs(victims, 10)
        return environment

    def start_daemon(self, name: str, environment: dict[str, str]) -> None:
        """Start a daemon that was killed."""
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", name],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)

    def expect_alive(self) -> None:
        """Check nothing: tests kill daemons."""

    def task_processes(self) -> dict[int, str]:
        """Return the processes of running tasks: the children of the executor's workers."""
        with suppress(psutil.NoSuchProcess, AssertionError):
            workers = self.daemon("scheduler").children()
            return {task.pid: task.name() for worker in workers for task in worker.children(recursive=True)}
        return {}

    def stop(self) -> None:
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        super().stop()
        for process in self._started:
            kill_group(process.pid)
            process.wait()
        self._started.clear()
