"""``on_kill`` of tasks in ``airflow dags test``, where one process runs all tasks."""

from __future__ import annotations

import subprocess
import sys

import pytest

TASK = """
import signal, time
from airflow.sdk import BaseOperator
from airflow.sdk.execution_time.timeout import timeout
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow_megatron.task_runtime.stopping import EndsTestRun

class Task(EndsTestRun, BaseOperator):
    pass

task = Task(task_id="t")
signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
"""
OUT_OF_TIME = """
try:  # as Airflow's runner of tasks does
    with timeout(0.1):
        time.sleep(60)
except AirflowTaskTimeout:
    task.on_kill()
print("the next task begins")
"""
TERMINATED = """
signal.raise_signal(signal.SIGTERM)
print("the next task begins")
"""


def ended(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", TASK + code], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_task_that_runs_out_of_time_does_not_end_the_run() -> None:
    result = ended(OUT_OF_TIME)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("the next task begins\n")  # after Airflow's log
    assert "SIGTERM" not in result.stderr


@pytest.mark.slow
def test_sigterm_ends_the_run() -> None:
    result = ended(TERMINATED)
    assert (result.returncode, result.stdout) == (143, "")
    assert "stopped by SIGTERM: jobs in Slurm continue" in result.stderr
