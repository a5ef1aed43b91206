"""Waiting for real processes: one that makes progress, one that hangs, and one that has ended."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.local.startup_wait import StartupWait, processor_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUSY = "while True: pass"
STILL = "import time; time.sleep(600)"
BUSY_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.fixture
def started() -> Iterator[Callable[[str], int]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> int:
        running.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        return running[-1].pid

    yield start
    for process in running:
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=True)
        process.wait()


def waited(wait: StartupWait) -> float:
    begin = time.monotonic()
    while wait.lasts():
        assert time.monotonic() - begin < 60
        time.sleep(0.02)
    return time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.parametrize("code", [BUSY, BUSY_CHILD])
def test_a_busy_program_may_use_its_processor_time(code: str, started: Callable[[str], int]) -> None:
    pid = started(code)
    waited(StartupWait(pid, work=0.4, still=30))
    assert processor_seconds(pid) >= 0.4


@pytest.mark.slow
def test_an_idle_program_is_given_up(started: Callable[[str], int]) -> None:
    pid = started(STILL)
    assert 0.5 <= waited(StartupWait(pid, work=100, still=0.5)) < 30


def test_a_busy_machine_stretches_the_wait() -> None:
    """The wait continues while the processor time grows, regardless of the wall clock."""
    now = [0.0]
    wait = StartupWait(pid := 2**22 + 1, work=10, still=5, clock=lambda: now[0])
    assert processor_seconds(pid) == 0  # no such process, so no processor time is used
    now[0] = 4.9
    assert wait.lasts()
    now[0] = 5.1
    assert not wait.lasts()
