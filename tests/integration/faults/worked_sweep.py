"""A sweep that :mod:`task_processes` runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patience import deadline_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from sweep_site import SweepSite

    from airflow_megatron.spec.model.jobs import Job

PROGRAM = Path(__file__).resolve().parent / "task_processes.py"
START_S = 60


class WorkedSweep:
    """Starts and stops the program; a context manager.

    :param site: folders, connection and cluster.
    :param jobs: the jobs to run.
    :param points: number of points that may start at first.
    """

    def __init__(self, site: SweepSite, jobs: Sequence[Job], points: int = 0) -> None:
        self.place = site.place / "task_processes"
        self._log = site.place / "task_processes.log"
        self._environment = {
            **os.environ,
            **site.folders,
            "AIRFLOW_HOME": str(site.place / "airflow"),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            "PYTHONWARNINGS": "ignore",
        }
        self.cleared: Counter[str] = Counter()
        self.last_words: dict[str, str] = {}
        """Task → what it had said before it was cleared."""
        self.place.mkdir()
        (self.place / "jobs.json").write_text(json.dumps([job.to_json() for job in jobs]))
        self.admit(points)

    def __enter__(self) -> WorkedSweep:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.place)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = deadline_in(START_S)
        while not self.states():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def has_succeeded(self) -> bool:
        return self._process.poll() == 0

    def admit(self, points: int) -> None:
        """Allow points to start."""
        draft = self.place / "admitted.new"
        draft.write_text(str(points))
        draft.replace(self.place / "admitted")

    def states(self) -> dict[str, dict[str, Any]]:
        """Return task → ``phase`` and ``try``."""
        file = self.place / "states.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def phases(self) -> dict[str, str]:
        """Return task → phase."""
        return {name: state["phase"] for name, state in self.states().items()}

    def log(self, task: str) -> str:
        """Return the log of a task or of ``triggerer``."""
        return (self.place / "logs" / f"{task}.log").read_text(errors="replace")

    def clear_failed(self) -> None:
        """Clear failed tasks, as a user does in the web UI."""
        for name, phase in self.phases().items():
            if phase == "failed":
                self.last_words[name] = self.log(name)[-3000:]
                (self.place / "cleared" / name).touch()
                self.cleared[name] += 1

    def living(self) -> dict[int, str]:
        """Return pid → name of the task and triggerer processes."""
        found = {}
        for file in (self.place / "living").iterdir():
            with suppress(FileNotFoundError):
                found[int(file.name)] = file.read_text()
        return found
