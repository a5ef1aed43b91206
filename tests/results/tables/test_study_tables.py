"""Stability, speed, attempts and cost of a sweep, from its run directories."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from run_tree import RunTree, iteration_line, take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report.table_files import curves_parquet, parquet, result_files
from airflow_megatron.results.tables.attempts import attempt_rows, attempt_table
from airflow_megatron.results.tables.costs import ALL, cost_rows, cost_table
from airflow_megatron.results.tables.throughput import node_rows, speed_rows
from airflow_megatron.results.tables.training_health import health_rows, loss_spikes
from airflow_megatron.results.tables.trainings import result_table

if TYPE_CHECKING:
    from airflow_megatron.results.readings.snapshot import SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob

from datetime import datetime

WHEN = datetime(2026, 11, 21, 9, 0)
SIZE = {"num_layers": 2, "hidden_size": 64}


def read(tree: RunTree) -> tuple[SweepSnapshot, tuple[SweepJob, ...]]:
    jobs = read_jobs(tree.jobs)
    return take_snapshot(run_directories(jobs)), jobs


def judged(tree: RunTree, point: str, number: int, node: str, outcome: str, hours: float, lines: str) -> None:
    """Write an attempt of a point's training with its verdict and log."""
    run = tree.root / "toy" / point
    tree.attempt(run, "pretrain", number)
    verdict = {"outcome": outcome, "reason": "as planned", "attempt": number, "job_id": f"{100 + number}"}
    verdict |= {"node_list": node, "elapsed": hours * 3600, "state": "COMPLETED"}
    tree.write(run / ".jobs" / "pretrain" / str(number) / "verdict.json", json.dumps(verdict))
    tree.write(run / ".jobs" / "pretrain" / "verdict.json", json.dumps(verdict))
    tree.write(run / "logs" / f"pretrain-{number}.out", lines)


@pytest.fixture
def restarted(tree: RunTree) -> RunTree:
    """A training that failed on n1 after iteration 100 and went on from iteration 60 on n2."""
    point = tree.add_point(SIZE, 120_000, 1e-3, train_iters=200)
    tree.jobs[0]["params"] |= {"nodes": 2, "gpus_per_node": 4}
    first = "".join(iteration_line(at, 200, 3.0, 1e-3, WHEN) for at in range(10, 101, 10))
    second = "".join(
        iteration_line(at, 200, 2.5, 1e-3, WHEN).replace("(ms): 125.0", "(ms): 250.0")
        for at in range(70, 201, 10)
    )
    judged(tree, point, 1, "n1", "retryable", 2.0, first)
    judged(tree, point, 2, "n2", "finished", 3.0, second)
    return tree


def test_what_was_repeated_is_lost(restarted: RunTree) -> None:
    rows = attempt_rows(*read(restarted))
    first, second = (row for row in rows if row.stage == "pretrain")
    assert (first.outcome, first.nodes, first.first, first.last, first.has_failed) == (
        "retryable", "n1", 10, 100, True,
    )  # fmt: skip
    assert first.useful == pytest.approx(0.6)
    assert (first.hours, first.gpu_hours) == (2.0, 16.0)
    assert (second.outcome, second.useful, second.has_failed) == ("finished", 1.0, False)
    lines = attempt_table(rows).display()
    assert lines[0][:3] == ["point", "stage", "attempt"]
    assert lines[0][-1] == "outcome"


def test_cost_of_each_stage_and_of_all(restarted: RunTree) -> None:
    rows = attempt_rows(*read(restarted))
    costs = {row.point: row for row in cost_rows(rows, {("h64_lr0.001", "pretrain", 1): 3600.0})}
    training = costs["pretrain"]
    assert (training.attempts, training.failed, training.hours) == (2, 1, 5.0)
    assert training.gpu_hours == 40.0
    assert training.lost_gpu_hours == pytest.approx(16 * 0.4)
    assert training.queue_hours == 1.0
    assert training.effective_share == pytest.approx((2 * 0.6 + 3) / 6)
    assert training.node_days == pytest.approx(10 / 24)
    assert training.failures_per_1000_node_days == pytest.approx(2400)
    assert costs[ALL].attempts == len(rows)
    assert cost_table(list(costs.values())).display()[0][0] == "stage"
    assert "outcome" not in cost_table(list(costs.values())).display()[0]


def test_nodes_are_compared_with_their_trainings(restarted: RunTree) -> None:
    snapshot, jobs = read(restarted)
    table = result_table(snapshot, jobs)
    assert [row.step_ms for row in speed_rows(table.branches)] == [250.0]
    nodes = {row.point: row for row in node_rows(table.branches, attempt_rows(snapshot, jobs))}
    assert nodes["n1"].relative_step == pytest.approx(0.5)
    assert nodes["n2"].relative_step == pytest.approx(1.0)
    assert (nodes["n1"].failed, nodes["n2"].failed) == (1, 0)


def test_divergence_and_spikes(tree: RunTree) -> None:
    tree.add_point(SIZE, 120_000, 1e-2, diverges_at=200)
    snapshot, jobs = read(tree)
    (row,) = health_rows(result_table(snapshot, jobs).branches)
    assert (row.outcome, row.diverged_at, row.nan_iterations, row.grad_norm) == ("diverged", 200, 21, 0.908)


def test_a_training_that_megatron_stops_at_a_nan_loss_has_diverged(tree: RunTree) -> None:
    """``check_for_nan_in_loss_and_grad``, which is on by default, raises an error before the iteration is logged."""
    point = tree.add_point(SIZE, 120_000, 1e-2)
    tree.add_point(SIZE, 120_000, 1e-3)
    run_dir = tree.root / "toy" / point
    log = run_dir / "logs" / "pretrain-1.out"
    head = log.read_text().partition(" [2026-11-21 09:00:26")[0]
    log.write_text(head + "[rank0]: RuntimeError: found NaN in local forward loss calculation\n")
    verdict = {"outcome": "failed", "reason": "a loss was not a number", "signature": "nan_in_training"}
    for place in (".jobs/pretrain", ".jobs/pretrain/1"):
        tree.write(run_dir / place / "verdict.json", json.dumps(verdict))
    snapshot, jobs = read(tree)
    table = result_table(snapshot, jobs)
    assert [(row.state, row.diverged) for row in table.rows] == [("failed", True), ("finished", False)]
    assert [(row.outcome, row.diverged_at) for row in health_rows(table.branches)] == [
        ("diverged", 201),
        ("finished", None),
    ]


@pytest.mark.parametrize(
    ("losses", "spikes"),
    [
        ([3.0] * 40, []),
        ([3.0] * 20 + [9.0] + [3.0] * 20, [6.0]),
        ([3.0] * 20 + [9.0, 8.0, 7.0] + [3.0] * 20, [6.0]),
        ([3.0] * 20 + [9.0] + [3.0] * 5 + [5.0] + [3.0] * 5, [6.0, 2.0]),
        ([9.0 - 0.2 * step for step in range(30)], []),
        ([3.0] * 20 + [3.1] * 20, []),
        ([9.0] + [3.0] * 5, []),
    ],
)
def test_a_spike_is_a_stretch_of_losses_far_above(
    losses: list[float], spikes: list[float], tmp_path: Any
) -> None:
    tree = RunTree(tmp_path)
    point = tree.add_point(SIZE, 1000, 1e-3, train_iters=40)
    text = "".join(iteration_line(at, 100, loss, 1e-3, WHEN) for at, loss in enumerate(losses, 1))
    tree.write(tree.root / "toy" / point / "logs" / "pretrain-1.out", text)
    snapshot, jobs = read(tree)
    (branch,) = result_table(snapshot, jobs).branches
    assert loss_spikes(branch.training.iterations) == pytest.approx(spikes)


def test_parquet_has_the_values_of_the_csv(tree: RunTree) -> None:
    tree.add_point(SIZE, 120_000, 1e-3, budgets={"1M": 250})
    snapshot, jobs = read(tree)
    table = result_table(snapshot, jobs)
    frame = pl.read_parquet(io.BytesIO(result_files(table)["results.parquet"]))  # type: ignore[arg-type]
    assert frame["validation_loss"].to_list() == pytest.approx([row.validation_loss for row in table.rows])
    assert frame["best"].dtype == pl.Boolean
    assert frame["iteration"].dtype == pl.Int64
    written = curves_parquet(table)
    assert written is not None
    curves = pl.read_parquet(io.BytesIO(written))
    assert curves.height == sum(len(branch.training.iterations) for branch in table.branches)
    assert curves["tokens"].max() == 400 * 16 * 256


def test_names_stay_text_in_parquet() -> None:
    frame = pl.read_parquet(io.BytesIO(parquet("point,job_id,lr\n007,12,0.1\n'=1+1,,\n'-x,13,\n")))
    assert frame["point"].to_list() == ["007", "=1+1", "-x"]
    assert frame["job_id"].to_list() == ["12", None, "13"]
    assert frame["lr"].dtype == pl.Float64
