"""What the log of a watching task keeps of its job's log."""

from __future__ import annotations

import logging

import pytest

from airflow_megatron.operators.slurm_watch import LINES_OF_FAILURE, SlurmWatchOperator

LINES = [f"line {number}" for number in range(50)]


@pytest.fixture
def watching(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> SlurmWatchOperator:
    caplog.set_level(logging.INFO, "task")
    monkeypatch.setattr(SlurmWatchOperator, "log", logging.getLogger("task"))
    return SlurmWatchOperator(task_id="w", job=None, handle=None)


def test_of_a_failure_the_last_lines_and_the_one_that_decided(
    watching: SlurmWatchOperator, caplog: pytest.LogCaptureFixture
) -> None:
    watching._show_tail({"log_tail": LINES, "verdict": {"line": "RuntimeError: \x1b[31mno\x1b[0m memory"}})
    shown, decided = [record.getMessage() for record in caplog.records]
    assert shown.splitlines()[1:] == LINES[-LINES_OF_FAILURE:]
    assert decided == "the line that decided: RuntimeError: no memory"


def test_of_a_failure_that_no_line_explains(
    watching: SlurmWatchOperator, caplog: pytest.LogCaptureFixture
) -> None:
    watching._show_tail({"log_tail": [], "verdict": {"line": None}})
    assert [record.getMessage().splitlines()[-1] for record in caplog.records] == ["(the job wrote nothing)"]


def test_what_the_next_wait_would_make_airflow_forget(
    watching: SlurmWatchOperator, caplog: pytest.LogCaptureFixture
) -> None:
    watching._keep_tail({"log_tail": LINES})
    assert [record.getMessage() for record in caplog.records] == [f"| {line}" for line in LINES]
