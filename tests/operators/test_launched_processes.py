"""The processes in which ``airflow dags test`` runs the points of a sweep."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.operators import launch_points
from airflow_megatron.operators.launch_points import TEST_WORKERS, LaunchPointsOperator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def operator() -> LaunchPointsOperator:
    return LaunchPointsOperator(task_id="launch", point_dag_id="sweep.point", pinned={})


class Script:
    """In place of an Airflow command, a shell script."""

    text = ""

    def __init__(self, *_: str) -> None:
        self.process = subprocess.Popen(["sh", "-c", self.text], stdout=subprocess.PIPE, text=True)

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            yield from lines

    def exit_status(self) -> int:
        return self.process.wait()

    def terminate(self) -> None:
        self.process.terminate()

    def wait(self, longest_s: float) -> None:
        self.process.wait(longest_s)


def test_no_point_begins_after_the_end_of_the_task(
    operator: LaunchPointsOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = tmp_path / "began"
    began.mkdir()
    monkeypatch.setattr(Script, "text", f"touch {began}/$$\nexec sleep 600")
    monkeypatch.setattr(launch_points, "ForkedCommand", Script)

    def work() -> None:
        with suppress(AirflowFailException):
            operator._execute_runs({f"p{number}": {"point": f"p{number}"} for number in range(9)})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while len(list(began.iterdir())) < TEST_WORKERS:
            time.sleep(0.02)
        operator.end_helpers()
        # its processes have ended, so the task has no further points to start
        assert len(list(began.iterdir())) == TEST_WORKERS
        thread.join(60)
        assert not thread.is_alive()
        assert len(list(began.iterdir())) == TEST_WORKERS
    finally:
        for file in began.iterdir():
            with suppress(ProcessLookupError):
                os.kill(int(file.name), 9)
