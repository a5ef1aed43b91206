from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from airflow_megatron.cli.log_commands import log

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
CPU_LOG = LOGS / "core_v0.16.1-cpu-tp2.log"
GPU_LOG = LOGS / "core_v0.14-gpt2xl-4gpu.log"
LINE = (
    " [2026-02-26 10:00:00.123456] iteration {:8d}/     100 | consumed samples: {:12d} | elapsed time per iteration"
    " (ms): 92.4 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.000000E-03 | global batch size:     4 |{}"
    " loss scale: 1.0 | grad norm: 0.908 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
LOADED = "  successfully loaded checkpoint from /ck [ t 1/1, p 1/1 ] at iteration {}\n"

app = typer.Typer()
app.command()(log)


def run(*words: str, data: bytes | None = None) -> str:
    result = CliRunner().invoke(app, list(words), input=data)
    assert result.exit_code == 0, result.output
    return result.stdout


def line(iteration: int, loss: float | None) -> str:
    shown = "" if loss is None else f" lm loss: {loss:.6E} |"
    return LINE.format(iteration, iteration * 4, shown)


def test_recorded_log() -> None:
    content = json.loads(run(str(CPU_LOG), "--format", "json"))
    assert [row["iteration"] for row in content["iterations"]] == list(range(1, 21))
    assert content["iterations"][-1]["loss"] == pytest.approx(4.325816)
    assert [row["kind"] for row in content["exits"]] == ["training_done"]
    assert [(row["event"], row["iteration"]) for row in content["checkpoints"]] == [
        ("saving", 10),
        ("saved", 10),
        ("saving", 20),
        ("saved", 20),
    ]
    assert [row["split"] for row in content["validation"]] == ["validation"] * 3 + ["test"]
    assert content["errors"] == []
    gpu = json.loads(run(str(GPU_LOG), "--format", "json"))
    assert gpu["memory"][0]["max_allocated"] == 27489.13525390625
    assert gpu["resumes"] == [
        {
            "iteration": 0,
            "event": "random_start",
            "path": "./sandbox_run/ckpt/latest_checkpointed_iteration.txt",
        }
    ]


def test_attempts_of_one_run(tmp_path: Path) -> None:
    first, second = tmp_path / "pretrain-1.out", tmp_path / "pretrain-2.out"
    first.write_text("".join(line(number, 5.0) for number in range(1, 15)))
    second.write_text(LOADED.format(10) + "".join(line(number, None) for number in range(11, 13)))
    all_of_it = json.loads(run(str(first), str(second), "--format", "json"))
    assert len(all_of_it["iterations"]) == 16
    assert all_of_it["resumes"] == [{"iteration": 10, "event": "loaded", "path": "/ck"}]
    assert all_of_it["throughput"] == 123.4
    merged = json.loads(run(str(first), str(second), "--merged", "--format", "json"))["iterations"]
    assert [row["iteration"] for row in merged] == list(range(1, 13))
    assert [row["is_nan"] for row in merged] == [False] * 10 + [True] * 2
    lines = [
        json.loads(text)
        for text in run(str(first), str(second), "--merged", "--format", "jsonl").splitlines()
    ]
    assert [row["type"] for row in lines] == ["iteration"] * 10 + ["checkpoint"] + ["iteration"] * 2


def test_numbers_that_json_cannot_hold(tmp_path: Path) -> None:
    text = line(1, 5.0).replace("grad norm: 0.908", "grad norm: nan").replace("5.000000E+00", "inf")
    (row,) = json.loads(run("-", "--format", "json", data=text.encode()))["iterations"]
    assert row["grad_norm"] is None
    assert row["loss"] is None
    assert row["is_nan"]


def test_table() -> None:
    shown = run(str(CPU_LOG))
    assert "iteration       20/20" in shown
    assert "exit: after training is done" in shown


def test_validations_are_told_apart_in_the_table() -> None:
    text = (
        " validation-0 loss at iteration 10 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n"
        " validation-1 loss at iteration 10 | lm loss value: NAN | lm loss PPL: 1.2E+01 | \n"
        " validation loss at iteration 20 on test set | lm loss value: 2.25E+00 | lm loss PPL: 1.2E+01 | \n"
        " validation loss at the end of training for val data | lm loss value: 2.0E+00 | lm loss PPL: 1.2E+01 | \n"
    )
    assert run("-", data=text.encode()).splitlines() == [
        "validation loss of set 0 at iteration 10: 2.5",
        "validation loss of set 1 at iteration 10: NaN",
        "test loss at iteration 20 (final): 2.25",
        "validation loss at the end: 2.0",
    ]


def test_the_throughput_is_the_median_of_finite_numbers() -> None:
    text = line(1, 5.0) + line(2, 5.0).replace("123.4", "inf") + line(3, 5.0).replace("123.4", "100.0")
    assert json.loads(run("-", "--format", "json", data=text.encode()))["throughput"] == pytest.approx(111.7)


def test_absent_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / "x.out")])
    assert result.exit_code == 1
    assert "x.out: No such file" in result.stderr


def test_a_file_without_log_lines(tmp_path: Path) -> None:
    other = tmp_path / "s.yaml"
    other.write_text("name: s\n")
    result = CliRunner().invoke(app, [str(other)])
    assert (result.stdout, result.stderr) == ("", "no line of a Megatron training in this log\n")
