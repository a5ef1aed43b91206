"""Reading of any log content does not block the event loop that all jobs share."""

from __future__ import annotations

import gc
import logging
import pickle
import re
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from hostile_text import attacks

from airflow_megatron.megatron.logs import checkpoint_lines, iteration_lines, log_lines
from airflow_megatron.megatron.trainers.megatron_deepspeed import log_lines as deepspeed_log_lines
from airflow_megatron.slurm.polling.poll import LOG_BYTES_PER_JOB
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation
from airflow_megatron.slurm.verdicts.signatures import SHIPPED_FILE
from airflow_megatron.slurm.verdicts.verdict import Expectation, judge
from airflow_megatron.task_runtime.job_report import JobReport

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_HOLD_S = 0.1
MARGIN = 3.0
"""A busy machine takes some of a thread's own time too; without bounds the texts take from 1 s to hours."""

MODULES = (log_lines, checkpoint_lines, iteration_lines, deepspeed_log_lines)
NEEDLES = (
    b"\n",
    b"x\n",
    b"\r",
    b"Error: a\n",
    b"Traceback (most recent call last)\n",
    b"Root Cause (first observed failure):\n",
    b"Failures:\n",
    b"[rank0]: RuntimeError: x\n",
    b"number of parameters on (",
    b"loading checkpoint from ",
    b"| consumed samples:",
    b"iteration 1/ 1 | consumed samples: 1 | ",
    b"iteration 1/ 1 | consumed samples: 1 | lm loss: 1 |\n",
    b" iteration=1| consumed_samples=1| ",
    b"validation loss at iteration 1 | lm loss value: 1 | ",
    b"[a] datetime: 2026-01-01 00:00:00 \n",
    b"\x1b[1m",
    b"\xff",
    b"\xe2\x80\xae",
    b"\0",
)

TRAINING = Expectation("train", train_iters=100, complete=lambda files: True)


def _patterns() -> Iterator[tuple[str, str | bytes]]:
    for module in MODULES:
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value.pattern
    for kind, needle in log_lines._EXIT_MARKERS:
        yield f"exit {kind}", needle.pattern
    for entry in yaml.safe_load(SHIPPED_FILE.read_text())["signatures"]:
        yield entry["name"], entry["pattern"]


def _probes() -> dict[bytes, str]:
    """Return units, each once, and their names."""
    found = {needle: repr(needle) for needle in NEEDLES}
    for name, pattern in _patterns():
        for unit in attacks(pattern):
            found.setdefault(unit, f"{name} {unit!r}"[:90])
    return found


PROBES = _probes()


def chunks(unit: bytes) -> list[bytes]:
    """Return what a poll may bring of a log that repeats *unit*: one line, or lines of the length that is looked at."""
    whole = (unit * (LOG_BYTES_PER_JOB // len(unit) + 1))[:LOG_BYTES_PER_JOB]
    line = whole[:4090] + b"\n"
    return [whole, line * (LOG_BYTES_PER_JOB // len(line))]


def seconds(chunk: bytes) -> float:
    """Return the processor time of one poll of a job that has written *chunk* and ended."""
    report = JobReport(logging.getLogger("silent"), "/run/log")
    row = AccountingRow("7", "x", JobState.FAILED, "FAILED", 1, 0, "n1", 1, ended=1.0, elapsed=400)
    seen = Observation(
        time=1000.0,
        queue_ok=True,
        accounting_ok=True,
        accounting=row,
        log_chunk=chunk,
        log_size=len(chunk),
        tracker="50",
    )
    gc.disable()
    begin = time.thread_time()
    report.read(seen)
    judge(seen, TRAINING, log_tail=bytes(report.tail))
    report.last_lines()
    taken = time.thread_time() - begin
    gc.enable()
    return taken


@pytest.mark.parametrize("unit", PROBES, ids=PROBES.values())
def test_no_log_holds_the_loop(unit: bytes) -> None:
    logging.getLogger("silent").setLevel(logging.CRITICAL)
    for chunk in chunks(unit) if unit in NEEDLES else chunks(unit)[1:]:
        took: list[float] = []
        while len(took) < 4 and min(took, default=1.0) > LONGEST_HOLD_S:
            took.append(seconds(chunk))
        assert min(took) < MARGIN * LONGEST_HOLD_S


@pytest.mark.parametrize("unit", [*NEEDLES[3:], b"x" * 97, b"\r"], ids=repr)
def test_a_line_that_never_ends_takes_no_memory(unit: bytes) -> None:
    parser = log_lines.LogParser()
    chunk = unit.replace(b"\n", b" ") * (LOG_BYTES_PER_JOB // len(unit))
    for _ in range(20):
        parser.feed(chunk)
    assert len(pickle.dumps(parser)) < 3 * LOG_BYTES_PER_JOB
