"""A training that stops itself after its walltime is warned about."""

from __future__ import annotations

import pytest
from checked_chain import changed, checked, line_of


@pytest.mark.slow
def test_an_exit_after_the_walltime() -> None:
    text = changed(("  lr_warmup_iters: 10", "  lr_warmup_iters: 10\n  exit_duration_in_mins: 360"))
    warning = checked(text).warnings[0]
    assert "it would save and exit after 360 minutes, but Slurm ends it after 06:00:00" in warning.message
    assert warning.hint == "exit_duration_in_mins: 324"
    assert warning.line == line_of(text, "exit_duration")
    assert checked(text.replace("in_mins: 360", "in_mins: 350")).warnings == ()
