"""The report on a job in the log of the waiting task."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.states.observation import Observation
from airflow_megatron.supervision.attempt_memory import LogMemory
from airflow_megatron.task_runtime.job_report import LOG_TAIL_BYTES, MOST_BEHIND_BYTES, JobReport

if TYPE_CHECKING:
    import pytest

LOG = logging.getLogger("task")
ITERATION = b" [2026-01-01 00:00:0%d] iteration        %d/      10 | consumed samples:            4 | "
FIELDS = (
    b"elapsed time per iteration (ms): 60000.0 | lm loss: 4.500000E+00 | number of nan iterations:   0 |\n"
)


def seen(chunk: bytes, offset: int = 0, size: int | None = None) -> Observation:
    return Observation(
        time=1.0, log_chunk=chunk, log_offset=offset, log_size=offset + len(chunk) if size is None else size
    )


def log_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def report(caplog: pytest.LogCaptureFixture, **arguments: Any) -> JobReport:
    caplog.set_level(logging.INFO, "task")
    return JobReport(LOG, "/r/logs/work-1.out", **arguments)


def test_lines_are_shown_as_they_come_and_the_summary_adds_what_they_do_not_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = ITERATION % (1, 1) + FIELDS
    two = ITERATION % (2, 2) + FIELDS
    reader = report(caplog)
    reader.read(seen(one))
    reader.read(seen(two, len(one)))
    assert log_lines(caplog) == [
        ("INFO", "| " + one.decode().rstrip()),
        ("INFO", "iteration 1 of 10 (10 %), loss 4.5000, 9 min to go"),
        ("INFO", "| " + two.decode().rstrip()),
    ]


def test_an_error_is_shown_once_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    reader.read(seen(b"fine\nTraceback (most recent call last):\n  at x\nValueError: no \x1b[31mdata\n"))
    assert log_lines(caplog)[-1] == ("ERROR", "| ValueError: no data")
    assert [level for level, _ in log_lines(caplog)] == ["INFO", "INFO", "INFO", "ERROR"]
    assert reader.error is not None
    assert reader.error.startswith("ValueError: no ")


def test_an_error_in_skipped_lines_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    reader.read(seen(b"ValueError: no data\n" + b"noise\n" * 500))
    assert ("INFO", "| … 401 lines left out; the whole log: /r/logs/work-1.out") in log_lines(caplog)
    assert log_lines(caplog)[-1] == ("ERROR", "job log: ValueError: no data")
    before = len(log_lines(caplog))
    reader.finish()
    (last,) = log_lines(caplog)[before:]
    assert last[1].startswith("401 lines of the job's log were left out here")


def test_only_the_last_of_many_iterations_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    reader.read(seen(b"".join(ITERATION % (number, number) + FIELDS for number in range(1, 6))))
    assert log_lines(caplog)[-1][1] == "iteration 5 of 10 (50 %), loss 4.5000, 5 min to go"
    assert len(log_lines(caplog)) == 6


def test_a_later_report_continues_at_an_incomplete_line(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    reader.read(seen(b"one\ntw"))
    later = report(caplog, memory=reader.memory())
    # the line that explains the job's end may have been shown already
    assert later.position == 0
    later.read(seen(b"one\ntw", 0))
    assert (bytes(later.tail), later.new_bytes, later.last_lines()) == (b"one\ntw", b"tw", ["tw"])
    later.read(seen(b"o\nthree\n", 6))
    assert [text for _, text in log_lines(caplog)] == ["| one", "| two", "| three"]
    assert later.last_lines() == ["two", "three"]


def test_a_later_report_begins_with_the_last_reported_lines(caplog: pytest.LogCaptureFixture) -> None:
    later = report(caplog, memory=LogMemory(LOG_TAIL_BYTES))
    half = LOG_TAIL_BYTES // 2
    assert later.position == half
    later.read(seen(b"x" * half, half))
    assert log_lines(caplog) == []
    assert not later.progressed
    assert later.last_lines() == []
    assert later.memory().offset == LOG_TAIL_BYTES


def test_bytes_read_before_are_not_read_again(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    reader.read(seen(b"one\n"))
    reader.read(seen(b"one\n"))
    assert [text for _, text in log_lines(caplog)] == ["| one"]


def test_a_reader_far_behind_skips_lines_and_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    size = MOST_BEHIND_BYTES + 4
    look = seen(b"one\n", size=size)
    reader.read(look)
    assert reader.skip_ahead(look, ended=False) is None
    look = seen(b"two\n", 4, size=size + 5)
    reader.read(look)
    assert reader.skip_ahead(look, ended=False) == size + 5 - LOG_TAIL_BYTES == reader.position
    assert "left out; the whole log: /r/logs/work-1.out" in log_lines(caplog)[-1][1]


def test_of_a_job_that_ended_the_last_lines_are_read_at_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    look = seen(b"one\n", size=4 + LOG_TAIL_BYTES + 1)
    reader.read(look)
    assert reader.skip_ahead(look, ended=True) == 5
    assert reader.unread(seen(b"", 5, size=100))


def test_a_log_that_cannot_be_read_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    reader = report(caplog)
    looks = [reader.unread(seen(b"", size=100)) for _ in range(5)]
    assert looks == [True, True, True, False, False]
