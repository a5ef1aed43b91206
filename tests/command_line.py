"""Run the command line in the process of the test."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from airflow_megatron.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Callable


class Answer(NamedTuple):
    """The result of a command: its exit status and output."""

    status: int
    stdout: str
    stderr: str


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Return a function that runs the command line with arguments."""

    def run(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["airflow-megatron", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return run
