"""Output of jobs reaches a terminal as plain text: no cursor movement, nothing hidden or reordered."""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from airflow_megatron.cli.checkpoint_commands import checkpoints
from airflow_megatron.cli.log_commands import log
from airflow_megatron.results.readings.progress import progress_grid, progress_lines
from airflow_megatron.results.readings.snapshot import RunSnapshot, SweepSnapshot
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.signatures import find_signature, shipped_signatures
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.supervision.live_log import harmless

if TYPE_CHECKING:
    from pathlib import Path

SEQUENCES = {
    "colour": "\x1b[31m",
    "clear": "\x1b[2J",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://x\x1b\\",
    "escape": "\x1b",
    "device": "\x1bP$q\x1b\\",
    "C1": "\x9b2J",
    "bell": "\x07",
    "backspace": "\x08\x08",
    "delete": "\x7f",
    "form feed": "\x0c",
    "vertical tab": "\x0b",
    "next line": "\x85",
    "override": "\u202e",
    "isolate": "\u2066",
    "mark": "\u200f",
    "line separator": "\u2028",
    "zero width": "\u200b",
    "byte order": "\ufeff",
    "no UTF-8": "\udcff",
    "null": "\x00",
    "return": "\rover",
}

app = typer.Typer()
app.command("log")(log)
app.command("checkpoints")(checkpoints)


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def assert_plain(text: str) -> None:
    odd = {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")}
    assert odd <= {"\n"}


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_log(tmp_path: Path, sequence: str, form: str) -> None:
    text = (
        f"RuntimeError: a{sequence}b\n"
        f"saving checkpoint at iteration 5 to /x{sequence}y in torch_dist format\n"
        f"[exiting {sequence}] datetime: 2026-01-01 00:00:00\n"
        f"[Rank 0] ({sequence}) memory (MB) | allocated: 1 |\n"
        f"validation-a{sequence} loss at iteration 5 | lm loss{sequence} value: 1.0 |\n"
        f" iteration 5/ 10 | consumed samples: 5 | odd{sequence}: x | my{sequence} loss: 1.0 |\n"
    )
    (tmp_path / "log").write_bytes(text.encode(errors="surrogateescape"))
    out = printed("log", str(tmp_path / "log"), "--format", form)
    assert_plain(out)
    assert "/x" in out
    if form == "json":
        json.loads(out)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_checkpoints(tmp_path: Path, sequence: str) -> None:
    folder = tmp_path / "iter_0000005"
    folder.mkdir()
    name = f"a{sequence.replace('/', '_')}.tmp".replace("\0", "")
    (folder / name).write_bytes(b"x")
    assert_plain(printed("checkpoints", str(tmp_path)))


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_status_and_verdicts(sequence: str) -> None:
    line = f"RuntimeError: a{sequence}b".encode(errors="surrogateescape")
    found = find_signature(shipped_signatures(), line, JobState.FAILED)
    assert found is None or found.line.isprintable()
    assert harmless(line).isprintable()
    (job,) = read_jobs([{"name": "j", "point": "p", "stage": "train", "kind": "train", "run_dir": "/r"}])
    verdict = RecordedVerdict.of(
        Verdict(Outcome.FAILED, f"x{sequence}y", line=line.decode(errors="replace")), 1
    )
    run = RunSnapshot("/r", verdicts={"train": verdict})
    assert_plain("\n".join(progress_lines(progress_grid(SweepSnapshot({"/r": run}), [job]))))
