"""A training that would stop itself only after its walltime causes a warning."""

from __future__ import annotations

import pytest
from checked_chain import changed, checked, errors_of, line_of


@pytest.mark.slow
def test_an_exit_after_the_walltime() -> None:
    text = changed(("  lr_warmup_iters: 10", "  lr_warmup_iters: 10\n  exit_duration_in_mins: 360"))
    warning = checked(text).warnings[0]
    assert "it would save and exit after 360 minutes, but Slurm ends it after 06:00:00" in warning.message
    assert warning.hint == "exit_duration_in_mins: 324"
    assert warning.line == line_of(text, "exit_duration")
    assert checked(text.replace("in_mins: 360", "in_mins: 350")).warnings == ()


def test_a_signal_at_the_start() -> None:
    text = changed(("time: 6h", "time: 6h, signal_before: 8h"))
    problems = errors_of(text)
    assert "told to save and exit as it starts" in problems[0].message
    assert {problem.line for problem in problems} == {line_of(text, "signal_before")}
    assert problems[0].hint == "signal_before: 5400s or less"


def test_a_signal_that_the_job_does_not_send() -> None:
    text = changed(("  lr_warmup_iters: 10", "  lr_warmup_iters: 10\n  exit_signal: SIGUSR1"))
    warning = checked(text).warnings[0]
    assert "it would save on SIGUSR1, but before the walltime and at preemptions its job sends SIGTERM" in (
        warning.message
    )
    assert warning.hint == "drop exit_signal"
    assert warning.line == line_of(text, "exit_signal")
    for without in ("SIGUSR1\n  exit_signal_handler: false", "SIGTERM"):
        assert checked(text.replace("SIGUSR1", without)).warnings == ()
