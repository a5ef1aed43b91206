from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_tree import BATCH, SEQ_LENGTH, take_snapshot

from airflow_megatron.results.readings.progress import progress_grid
from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report.page_data import page_data
from airflow_megatron.results.report.report import write_report
from airflow_megatron.results.tables.evaluation_rows import evaluation_rows
from airflow_megatron.results.tables.evaluation_rows import to_json as evaluations_json
from airflow_megatron.results.tables.throughput import speed_rows, speed_table
from airflow_megatron.results.tables.trainings import (
    ResultRow,
    ResultTable,
    display_columns,
    display_rows,
    flatten_evaluation,
    format_count,
    format_seconds,
    result_table,
    to_csv,
    to_json,
    to_markdown,
    to_text,
)
from airflow_megatron.results.tables.vocabulary_padding import padding_note, padding_parameters

if TYPE_CHECKING:
    from run_tree import RunTree

    from airflow_megatron.results.readings.snapshot import SweepSnapshot


@pytest.fixture
def table(sweep: tuple[RunTree, SweepSnapshot]) -> ResultTable:
    tree, snapshot = sweep
    return result_table(snapshot, read_jobs(tree.jobs))


def row_of(table: ResultTable, point: str, branch: str) -> ResultRow:
    (row,) = [row for row in table.rows if (row.point, row.branch) == (point, branch)]
    return row


@pytest.mark.slow
def test_a_finished_branch(table: ResultTable) -> None:
    row = row_of(table, "h64_lr0.003", "cooldown_1M")
    assert row.state == "finished"
    assert row.parameters == 120_000
    assert row.tokens == 250 * BATCH * SEQ_LENGTH
    assert (row.iteration, row.train_iters, row.learning_rate) == (250, 250, 3e-3)
    assert row.train_loss is not None
    assert row.validation_loss is not None
    assert row.test_loss == pytest.approx(row.validation_loss + 0.01, abs=1e-5)
    assert row.tokens_per_second == pytest.approx(BATCH * SEQ_LENGTH / 0.125)
    assert row.wall_seconds == 60.5
    assert row.attempts == 1
    assert row.evaluated_iteration == 250
    assert set(row.evaluations) == {"heldout/byte_perplexity", "next_line/acc"}
    assert row.evaluation_errors == {"next_line/acc": 0.02}


@pytest.mark.parametrize("evidence", ["validation", "checkpoint", None])
def test_tokens_of_a_finished_training_whose_end_is_not_logged(tree: RunTree, evidence: str | None) -> None:
    tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3, train_iters=27)
    run_dir = tree.root / "toy" / "h64_lr0.001"
    if evidence != "validation":
        log = run_dir / "logs" / "pretrain-1.out"
        lines = [line for line in log.read_text().splitlines() if "validation loss" not in line]
        tree.write(log, "\n".join(lines) + "\n")
    if evidence == "checkpoint":
        verdict = {"outcome": "finished", "reason": "done", "state": "COMPLETED", "iteration": 27}
        tree.write(run_dir / ".jobs" / "pretrain" / "verdict.json", json.dumps(verdict))
    jobs = read_jobs(tree.jobs)
    row = row_of(result_table(take_snapshot(run_directories(jobs)), jobs), "h64_lr0.001", "pretrain")
    assert (row.iteration, row.train_iters) == (20, 27)
    assert row.tokens == (27 if evidence else 20) * BATCH * SEQ_LENGTH


@pytest.mark.slow
def test_failed_points_stay_in_the_table(table: ResultTable) -> None:
    assert len(table.rows) == 4 * 3 + 2
    row = row_of(table, "h128_lr0.01", "pretrain")
    assert row.state == "failed"
    assert row.diverged
    assert row.train_loss is None
    assert row.reason == "exit code 1: the loss is not a number"
    assert not row.best


def test_points_not_started_stay_in_the_table(tree: RunTree) -> None:
    job = {
        "name": "s.p.pretrain",
        "point": "p",
        "stage": "pretrain",
        "kind": "train",
        "run_dir": "/nowhere/p",
        "sweep_params": {"lr": 0.1},
    }
    (row,) = result_table(take_snapshot(["/nowhere/p"]), read_jobs([job])).rows
    assert (row.state, row.learning_rate, row.loss, row.attempts) == ("waiting", 0.1, None, 0)


@pytest.mark.slow
def test_best_of_each_size_and_branch(table: ResultTable) -> None:
    groups: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in table.rows:
        groups.setdefault((row.group, row.branch), []).append(row)
    assert len(groups) == 6
    for rows in groups.values():
        losses = [
            row.validation_loss for row in rows if row.state == "finished" and row.validation_loss is not None
        ]
        assert [row.validation_loss for row in rows if row.best] == [min(losses)]


def test_wall_time_of_an_attempt_that_was_killed(tree: RunTree) -> None:
    tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3)
    (exit_record,) = tree.root.glob("toy/*/.jobs/pretrain/1/exit.json")
    exit_record.unlink()
    jobs = read_jobs(tree.jobs)
    (row,) = result_table(take_snapshot(run_directories(jobs)), jobs).rows
    # 40 lines of 10 iterations each, 125 ms an iteration
    assert row.wall_seconds == pytest.approx(0.125 * 400)


def test_csv(table: ResultTable) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == len(table.rows)
    for read, row in zip(rows, table.rows, strict=True):
        assert (read["point"], read["branch"], read["state"]) == (row.point, row.branch, row.state)
        assert read["param:hidden_size"] == str(row.sweep_params["hidden_size"])
        assert float(read["param:lr"]) == row.learning_rate
        for name in ("train_loss", "validation_loss"):
            assert read[name] == ("" if getattr(row, name) is None else repr(getattr(row, name)))
        assert read["eval:next_line/acc"] == (
            "" if not row.evaluations else repr(row.evaluations["next_line/acc"])
        )


def test_csv_defuses_formulas(tree: RunTree) -> None:
    job = {"name": "n", "point": "=cmd()", "stage": "pretrain", "kind": "train", "run_dir": "/nowhere"}
    text = to_csv(result_table(take_snapshot(["/nowhere"]), read_jobs([job])))
    assert next(csv.DictReader(io.StringIO(text)))["point"] == "'=cmd()"


def test_json(table: ResultTable) -> None:
    rows = json.loads(to_json(table))
    assert [row["validation_loss"] for row in rows] == [row.validation_loss for row in table.rows]
    assert rows[0]["sweep_params"] == {"num_layers": 2, "hidden_size": 64, "lr": 1e-3}


def test_a_parameter_without_bound(tree: RunTree) -> None:
    """JSON has no infinity, which is a valid value of ``clip_grad``."""
    tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3)
    jobs = read_jobs(
        {**job, "sweep_params": {"clip_grad": math.inf, "betas": [0.9, math.nan]}} for job in tree.jobs
    )
    snapshot = take_snapshot(run_directories(jobs))
    made = result_table(snapshot, jobs)
    speeds = speed_table(speed_rows(made.branches)).to_json()
    evaluations = evaluations_json(evaluation_rows(made, snapshot, jobs))
    for text in (to_json(made), speeds, evaluations):
        (params, *_) = [row["sweep_params"] for row in json.loads(text, parse_constant=pytest.fail)]
        assert params == {"clip_grad": "inf", "betas": [0.9, "nan"]}


def test_a_diverged_training_is_never_the_best(tree: RunTree) -> None:
    size = {"num_layers": 2, "hidden_size": 64}
    for rate in (1e-3, 3e-3):
        tree.add_point(size, 120_000, rate)
    diverged = tree.add_point(size, 120_000, 1e-2, diverges_at=300)
    run_dir = tree.root / "toy" / diverged
    # a validation before the divergence, and no check of the loss
    log = run_dir / "logs" / "pretrain-1.out"
    before = " validation loss at iteration 200 | lm loss value: 1.0E-03 | lm loss PPL: 1.0E+00 | \n"
    head, mark, rest = log.read_text().partition(" [2026-11-21 09:00:26")
    log.write_text(head + before + mark + rest)
    tree.verdict(run_dir, "pretrain", "finished", "iteration 400 reached")
    jobs = read_jobs(tree.jobs)
    rows = result_table(take_snapshot(run_directories(jobs)), jobs).rows
    assert [(row.state, row.diverged) for row in rows] == [
        ("finished", False),
        ("finished", False),
        ("finished", True),
    ]
    assert rows[2].validation_loss == 1e-3
    assert [row.best for row in rows].count(True) == 1
    assert not rows[2].best


def test_the_lowest_loss_of_a_point_on_the_page_is_a_number(tree: RunTree) -> None:
    point = tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3, budgets={"1M": 250})
    log = tree.root / "toy" / point / "logs" / "pretrain-1.out"
    log.write_text(re.sub(r"lm loss value: \S+", "lm loss value: NAN", log.read_text()))
    jobs = read_jobs(tree.jobs)
    snapshot = take_snapshot(run_directories(jobs))
    made = result_table(snapshot, jobs)
    trunk, cooldown = made.rows
    assert trunk.validation_loss is not None
    assert math.isnan(trunk.validation_loss)
    (row,) = json.loads(page_data(made, progress_grid(snapshot, jobs), [], []))["rows"]
    assert row["validation_loss"] == pytest.approx(cooldown.validation_loss)


def test_markdown(table: ResultTable) -> None:
    lines = to_markdown(table).splitlines()
    assert len(lines) == 2 + len(table.rows)
    assert len({line.count("|") for line in lines}) == 1
    assert sum("★**" in line for line in lines) == 6


def test_text_shows_every_row(table: ResultTable) -> None:
    text = to_text(table)
    for row in table.rows:
        assert any(
            row.point in line and row.branch in line and row.state in line for line in text.splitlines()
        )
    assert "NaN" in text


def test_the_length_of_an_encoder_is_that_of_its_samples() -> None:
    job = {"name": "n", "stage": "pretrain", "kind": "train", "run_dir": "/nowhere"}
    for params, length in (
        ({"encoder_seq_length": 512, "decoder_seq_length": 128}, 512),
        ({"encoder_seq_length": 512, "seq_length": 256}, 256),
        ({"decoder_seq_length": 128}, None),
    ):
        (read,) = read_jobs([{**job, "params": params}])
        assert read.seq_length == length


def test_columns_without_any_value_are_left_out(tree: RunTree) -> None:
    job = {
        "name": "n",
        "point": "p",
        "stage": "pretrain",
        "kind": "train",
        "run_dir": "/nowhere",
        "sweep_params": {"state": "CA"},
    }
    table = result_table(take_snapshot(["/nowhere"]), read_jobs([job]))
    # A swept parameter may be called like a column of the table.
    assert display_columns(table) == ["point", "branch", "state", "time", "attempts", "state"]
    assert display_rows(table) == [["p", "pretrain", "CA", "–", "0", "waiting"]]


def test_flatten_evaluation() -> None:
    results = {
        "results": {
            "mmlu": {
                "alias": "mmlu", "acc,none": 0.25, "acc_stderr,none": 0.01, "acc_norm,none": 0.3,
                "acc_norm_stderr,none": "N/A", "exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": 0.1,
                "sample_len": 100, "bad,none": math.nan,
            },
            "broken": None,
        }
    }  # fmt: skip
    values, errors = flatten_evaluation(results)
    assert values == {"mmlu/acc": 0.25, "mmlu/acc_norm": 0.3, "mmlu/exact_match,strict-match": 0.5}
    assert errors == {"mmlu/acc": 0.01, "mmlu/exact_match,strict-match": 0.1}
    assert flatten_evaluation({}) == ({}, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0, "0"), (12, "12"), (999, "999"), (1000, "1k"), (57664, "57.7k"), (999_999, "1M"),
        (1_557_686_400, "1.56B"), (2e12, "2T"),
    ],
)  # fmt: skip
def test_counts(value: float | None, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (5.4, "00:05"), (65, "01:05"), (3600, "01:00:00"), (90061, "1d 01:01:01")],
)
def test_durations(value: float | None, text: str) -> None:
    assert format_seconds(value) == text


def test_branches_know_where_they_start(table: ResultTable) -> None:
    for branch in table.branches:
        parent = table.parent_of(branch)
        if branch.row.branch == "pretrain":
            assert parent is branch.row.parent_branch is None
        else:
            assert parent is not None
            assert (parent.row.point, parent.row.branch) == (branch.row.point, "pretrain")


@pytest.mark.parametrize(
    ("params", "padding"),
    [
        ({"vocab_size": 1000, "hidden_size": 64}, 24 * 64),
        ({"vocab_size": 1024, "hidden_size": 64}, 0),
        ({"vocab_size": 1000, "hidden_size": 64, "tensor_model_parallel_size": 4}, 24 * 64),
        ({"vocab_size": 1100, "hidden_size": 64, "tensor_model_parallel_size": 4}, 436 * 64),
        ({"vocab_size": 1000, "hidden_size": 64, "untie_embeddings_and_output_weights": True}, 2 * 24 * 64),
        ({"vocab_size": 1000, "hidden_size": 64, "make_vocab_size_divisible_by": 1}, 0),
        ({"tokenizer_type": "GPT2BPETokenizer", "hidden_size": 8}, 47 * 8),
        ({"hidden_size": 64}, None),
        ({"vocab_size": "x", "hidden_size": 64}, None),
        ({"vocab_size": 1000}, None),
    ],
)
def test_parameters_of_the_vocabularys_padding(params: dict[str, object], padding: int | None) -> None:
    assert padding_parameters(params) == padding


def test_counts_with_and_without_padding(tree: RunTree) -> None:
    """Tensor parallelism changes the padding: equal models have different numbers of parameters."""
    for tensor, parameters in ((1, 120_000), (4, 150_000)):
        tree.add_point({"num_layers": 2, "hidden_size": 64}, parameters, 1e-3 * tensor)
    for job in tree.jobs:
        tensor = 1 if job["params"]["lr"] == 1e-3 else 4
        job["params"] |= {"vocab_size": 1100, "tensor_model_parallel_size": tensor}
    jobs = read_jobs(tree.jobs)
    table = result_table(take_snapshot(run_directories(jobs)), jobs)
    assert [row.parameters_without_padding for row in table.rows] == [120_000 - 52 * 64, 150_000 - 436 * 64]
    assert "without padding" in to_text(table)
    assert "compare those without padding" in padding_note(table.rows)
    assert padding_note(table.rows[:1]) == ""


def test_a_sweep_of_commands_has_a_table_of_its_jobs(tmp_path: Path) -> None:
    jobs = [
        {
            "name": f"s.{point}.work",
            "point": point,
            "stage": "work",
            "kind": "command",
            "run_dir": str(tmp_path / point),
        }
        for point in ("a", "b")
    ]
    attempt = tmp_path / "a" / ".jobs" / "work" / "1"
    attempt.mkdir(parents=True)
    (attempt / "jobid").write_text("7\n")
    verdict = {"outcome": "failed", "reason": "exit code 3", "job_id": "7"}
    (attempt.parent / "verdict.json").write_text(json.dumps(verdict))
    report = write_report(take_snapshot([job["run_dir"] for job in jobs]), jobs, tmp_path / "out")
    assert [path.name for path in report.tables] == ["jobs.csv", "jobs.json", "jobs.md"]
    rows = json.loads((tmp_path / "out" / "jobs.json").read_text())
    assert [(row["point"], row["outcome"], row["job_id"]) for row in rows] == [
        ("a", "failed", "7"),
        ("b", "waiting", None),
    ]
    assert "exit code 3" in report.text
    assert "exit code 3" in report.page.read_text()


def test_a_branch_whose_trunk_has_failed_is_blocked(tree: RunTree) -> None:
    tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3, budgets={"1M": 100})
    run_dir = next(job["run_dir"] for job in tree.jobs if job["stage"] == "pretrain")
    branch = next(job for job in tree.jobs if job["kind"] == "train" and job["stage"] != "pretrain")
    for folder in (Path(branch["run_dir"]), Path(run_dir)):
        shutil.rmtree(folder)
    verdict = '{"attempt": 1, "outcome": "failed", "reason": "ImportError", "job_id": "7"}'
    tree.write(Path(run_dir) / ".jobs" / "pretrain" / "1" / "jobid", "7\n")
    tree.write(Path(run_dir) / ".jobs" / "pretrain" / "verdict.json", verdict)
    jobs = read_jobs(tree.jobs)
    rows = {row.branch: row for row in result_table(take_snapshot(run_directories(jobs)), jobs).rows}
    assert (rows["pretrain"].state, rows[branch["branch"]].state) == ("failed", "blocked")
