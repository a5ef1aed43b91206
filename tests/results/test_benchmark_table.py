"""Tables of benchmarks from the logs of a trainer."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from run_tree import take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.results.report.report import write_report
from airflow_megatron.results.tables.benchmarks import BenchmarkRow, benchmark_rows, benchmark_table

if TYPE_CHECKING:
    from pathlib import Path

    from run_tree import RunTree

BATCH, SEQ_LENGTH = 8, 128


def benchmark_job(tree: RunTree, point: str, expect: str | None = None, **reported: float) -> dict[str, Any]:
    return {
        "name": f"speed.{point}.benchmark",
        "point": point,
        "stage": "benchmark",
        "kind": "benchmark",
        "run_dir": str(tree.root / point / "benchmark"),
        "params": {"seq_length": SEQ_LENGTH, "gpus_per_node": 2, "nodes": 1, "train_iters": 12},
        "sweep_params": {"way": point, "theirs": 1},
        "expect": expect,
        "measure": {"skip": 4, "reported": reported, "hidden": ["theirs"], "gpu": "h200"},
    }


def write_log(tree: RunTree, job: dict[str, Any], steps_ms: list[float]) -> None:
    lines = []
    for rank, reserved in ((0, 2000.0), (1, 3000.0)):
        memory = f"allocated: 10.0 | max allocated: 1500.0 | reserved: 1900.0 | max reserved: {reserved}"
        lines.append(f"[Rank {rank}] (after 1 iterations) memory (MB) | {memory}")
    when = datetime(2026, 1, 1)
    for number, step in enumerate(steps_ms, start=1):
        when += timedelta(milliseconds=step)
        lines.append(
            f" [{when:%Y-%m-%d %H:%M:%S}] iteration {number:8d}/{len(steps_ms):8d} | consumed samples: "
            f"{number * BATCH:12d} | elapsed time per iteration (ms): {step:.1f} | throughput per GPU (TFLOP/s/GPU): "
            f"{1000 / step:.1f} | learning rate: 1.0E-03 | global batch size: {BATCH:5d} | lm loss: 5.0E+00 | "
            "loss scale: 1.0 | grad norm: 0.9 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    tree.write(tree.root / job["point"] / "benchmark" / "logs" / "benchmark-1.out", "\n".join(lines) + "\n")


@pytest.fixture
def jobs(tree: RunTree) -> list[dict[str, Any]]:
    ran = benchmark_job(tree, "ran", step_ms=50, memory_gb=6.291456)
    full = benchmark_job(tree, "full", "oom")
    surprise = benchmark_job(tree, "surprise", "oom")
    write_log(tree, ran, [900.0, 100.0, 100.0, 100.0, 10.0, 20.0, 40.0, 40.0, 20.0, 20.0, 25.0, 5.0])
    write_log(tree, surprise, [10.0] * 12)
    for job, verdict in (
        (ran, {"outcome": "finished"}),
        (full, {"outcome": "finished", "expected": "oom"}),
        (surprise, {"outcome": "finished"}),
    ):
        folder = tree.root / job["point"] / "benchmark" / ".jobs" / "benchmark"
        tree.write(folder / "verdict.json", json.dumps({"reason": "r", **verdict}))
        tree.write(folder / "1" / "jobid", "7\n")
    return [ran, full, surprise]


@pytest.fixture
def rows(jobs: list[dict[str, Any]]) -> list[BenchmarkRow]:
    return benchmark_rows(take_snapshot([job["run_dir"] for job in jobs]), read_jobs(jobs))


def test_figures(rows: list[BenchmarkRow]) -> None:
    row = rows[0]
    assert (row.iterations, row.step_ms, row.slowest_step_ms) == (8, 20.0, 40.0)
    assert row.step_ratio == pytest.approx(0.4)
    assert row.throughput == pytest.approx(50.0)
    assert row.mfu == pytest.approx(100 * 50.0 / 989.4)
    assert row.tokens_per_second == pytest.approx(BATCH * SEQ_LENGTH / 0.020 / 2)
    assert row.memory_gb == pytest.approx(3000 * 1048576 / 1e9)
    assert row.memory_ratio == pytest.approx(0.5)
    assert row.sweep_params == {"way": "ran"}


def test_memory_of_every_stage_of_a_pipeline(tree: RunTree) -> None:
    job = benchmark_job(tree, "pp")
    job["params"] |= {"gpus_per_node": 4, "pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2}
    write_log(tree, job, [10.0] * 12)
    log = tree.root / "pp" / "benchmark" / "logs" / "benchmark-1.out"
    more = "[Rank {}] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 1.0 | reserved: {}\n"
    log.write_text(log.read_text() + more.format(2, 5000.0) + more.format(3, 4000.0))
    (row,) = benchmark_rows(take_snapshot([job["run_dir"]]), read_jobs([job]))
    assert row.stage_memory_gb == pytest.approx((3000 * 1048576 / 1e9, 5000 * 1048576 / 1e9))
    assert "| 3.1 / 5.2 |" in benchmark_table([row]).to_markdown()
    job["params"]["use_tp_pp_dp_mapping"] = True
    job["params"]["tensor_model_parallel_size"] = 1
    (row,) = benchmark_rows(take_snapshot([job["run_dir"]]), read_jobs([job]))
    assert row.stage_memory_gb == pytest.approx((5000 * 1048576 / 1e9, 4000 * 1048576 / 1e9))


def test_samples_of_nvidia_smi(tree: RunTree) -> None:
    job = benchmark_job(tree, "watched")
    write_log(tree, job, [10.0] * 12)
    folder = tree.root / "watched" / "benchmark" / ".jobs" / "benchmark" / "1"
    tree.write(folder / "jobid", "7\n")
    starting, loaded = "0, 500, 3, 90.00\n1, 4, 0, 70.00\n", "0, 80000, 90, 600.5\n1, 70000, 100, [N/A]\n"
    tree.write(folder / "gpus" / "n1.csv", starting + loaded + loaded.replace("90,", "100,"))
    tree.write(folder / "gpus" / "n2.csv", "NVIDIA-SMI has failed\n")
    (row,) = benchmark_rows(take_snapshot([job["run_dir"]]), read_jobs([job]))
    assert row.used_memory_gb == pytest.approx(80000 * 1048576 / 1e9)
    assert row.utilisation == pytest.approx((95 + 100) / 2)
    assert row.power_w == pytest.approx(600.5 / 2)
    head = benchmark_table([row]).to_markdown().splitlines()[0]
    assert "| nvidia-smi GB | GPU busy % | W/GPU |" in head


def test_outcomes(rows: list[BenchmarkRow]) -> None:
    assert [row.outcome for row in rows] == ["ok", "oom (expected)", "ok (oom expected)"]
    assert rows[1].step_ms is rows[1].memory_gb is None


@pytest.mark.parametrize(
    ("verdict", "outcome"), [({"outcome": "out_of_memory"}, "oom"), ({"outcome": "failed"}, "failed")]
)
def test_what_was_not_meant(
    tree: RunTree, jobs: list[dict[str, Any]], verdict: dict[str, str], outcome: str
) -> None:
    job = jobs[0]
    folder = tree.root / job["point"] / "benchmark" / ".jobs" / "benchmark"
    tree.write(folder / "verdict.json", json.dumps({"reason": "r", **verdict}))
    (row,) = benchmark_rows(take_snapshot([job["run_dir"]]), read_jobs([job]))
    assert row.outcome == outcome


def test_written_forms(rows: list[BenchmarkRow]) -> None:
    (ran, full, _) = csv.DictReader(io.StringIO(benchmark_table(rows).to_csv()))
    assert (ran["param:way"], ran["step_ms"], ran["outcome"]) == ("ran", "20.0", "ok")
    assert (full["step_ms"], full["outcome"]) == ("", "oom (expected)")
    assert [row["step_ms"] for row in json.loads(benchmark_table(rows).to_json())] == [20.0, None, 10.0]
    head, _, *lines = benchmark_table(rows).to_markdown().splitlines()
    assert head.startswith("| point | way | step ms | reported ms | ratio |")
    assert "| 20.0 | 50 | 0.40 |" in lines[0]
    assert "memory ratio" in benchmark_table(rows).to_text().splitlines()[0]


@pytest.mark.slow
def test_report(tmp_path: Path, jobs: list[dict[str, Any]]) -> None:
    report = write_report(take_snapshot([job["run_dir"] for job in jobs]), jobs, tmp_path, title="speed")
    assert {path.name for path in report.tables} == {"benchmark.csv", "benchmark.json", "benchmark.md"}
    assert "oom (expected)" in report.text
    page = report.page.read_text()
    assert "<h2>Benchmark</h2>" in page
    assert "<h2>Results</h2>" not in page
