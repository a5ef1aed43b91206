"""The part of a job's log that the log of the watching task keeps."""

from __future__ import annotations

import logging

import pytest

from airflow_megatron.operators.slurm_watch import LINES_OF_FAILURE, SlurmWatchOperator, last_error
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.supervision.job_event import JobEvent

LINES = [f"line {number}" for number in range(50)]


def failed(lines: list[str], line: str | None) -> JobEvent:
    return JobEvent(Verdict(Outcome.FAILED, "exit code 1", line=line), log_tail=tuple(lines))


@pytest.fixture
def watching(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> SlurmWatchOperator:
    caplog.set_level(logging.INFO, "task")
    monkeypatch.setattr(SlurmWatchOperator, "log", logging.getLogger("task"))
    return SlurmWatchOperator(task_id="w", job=None, handle=None)


def test_a_failure_shows_the_last_lines_and_the_deciding_one(
    watching: SlurmWatchOperator, caplog: pytest.LogCaptureFixture
) -> None:
    watching._show_tail(failed(LINES, "RuntimeError: \x1b[31mno\x1b[0m memory"))
    shown, decided = [record.getMessage() for record in caplog.records]
    assert shown.splitlines()[1:] == LINES[-LINES_OF_FAILURE:]
    assert decided == "the line that decided: RuntimeError: no memory"


def test_a_failure_without_a_deciding_line(
    watching: SlurmWatchOperator, caplog: pytest.LogCaptureFixture
) -> None:
    watching._show_tail(failed([], None))
    assert [record.getMessage().splitlines()[-1] for record in caplog.records] == ["(the job wrote nothing)"]


def test_lines_are_kept_when_the_task_defers_again(
    watching: SlurmWatchOperator, caplog: pytest.LogCaptureFixture
) -> None:
    watching._keep_tail(JobEvent(log_tail=tuple(LINES)))
    assert [record.getMessage() for record in caplog.records] == [f"| {line}" for line in LINES]


@pytest.mark.parametrize(
    ("error", "explanation", "sentence"),
    [
        (None, "exit code 1", ""),
        ("slurm: JOB 15 CANCELLED", "cancelled (the log line that decided: error: JOB 15 CANCELLED)", ""),
        ("OSError: no space", "the file system is full: OSError: no space [sacct]", ""),
        ("KeyError: 'a'", "a rank failed: ChildFailedError", " The log says: KeyError: 'a'."),
        ("AssertionError: ", "exit code 1", " The log says: AssertionError: ."),
    ],
)
def test_the_last_error_is_not_repeated(error: str | None, explanation: str, sentence: str) -> None:
    assert last_error(error, explanation) == sentence
