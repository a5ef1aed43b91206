"""The end of a program's process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from trainer_harness import SCRIPTS

PROGRAM = """\
import atexit
{first}

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("collected")


atexit.register(print, "exit function")
cycle = Cycle()
del cycle
"""


@pytest.mark.parametrize(
    ("first", "printed"),
    [
        ("import megatron_core_trainer", ["exit function"]),
        ("", ["exit function", "collected"]),
    ],
)
def test_a_program_ends_without_a_last_collection(first: str, printed: list[str]) -> None:
    program = PROGRAM.format(first=first)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=SCRIPTS, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split("\n")[:-1] == printed
