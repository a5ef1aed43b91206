"""The processes in which ``airflow dags test`` runs the points of a sweep."""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.operators import launch_points
from airflow_megatron.operators.launch_points import TEST_WORKERS, LaunchPointsOperator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def operator() -> LaunchPointsOperator:
    return LaunchPointsOperator(task_id="launch", point_dag_id="sweep.point", pinned={})


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace the program that runs a point by a shell script."""

    def replace(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(launch_points.sys, "executable", str(program))

    return replace


def test_no_point_begins_after_the_end_of_the_task(
    operator: LaunchPointsOperator, python: Callable[[str], None], tmp_path: Path
) -> None:
    began = tmp_path / "began"
    began.mkdir()
    python(f"touch {began}/$$\nexec sleep 600")

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


def test_output_in_another_encoding_does_not_fail_the_point(
    operator: LaunchPointsOperator, python: Callable[[str], None]
) -> None:
    python(r"printf 'caf\351\n'")
    assert operator._execute_runs({"p0": {"point": "p0"}}) == {"p0": ""}
