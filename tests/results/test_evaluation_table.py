"""A table with every metric of every evaluated checkpoint."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from run_tree import BATCH, SEQ_LENGTH, take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report.report import write_report
from airflow_megatron.results.tables.evaluation_rows import (
    EvaluationRow,
    display_table,
    evaluation_rows,
    to_csv,
    to_json,
    to_markdown,
)
from airflow_megatron.results.tables.trainings import result_table

if TYPE_CHECKING:
    from pathlib import Path

    from run_tree import RunTree

    from airflow_megatron.results.readings.snapshot import SweepSnapshot

HARNESS = {
    "results": {
        "arc@25": {"acc,none": 0.5, "acc_stderr,none": 0.02, "acc_norm,none": 0.25, "sample_len": 100},
        "gsm8k": {
            "exact_match,strict-match": 0.125,
            "exact_match_stderr,strict-match": "N/A",
            "alias": "gsm8k",
        },
        "broken": None,
    },
    "n-shot": {"arc@25": 25, "gsm8k": 0},
    "higher_is_better": {"arc@25": {"acc": True}},
    "n-samples": {"arc@25": {"original": 1172, "effective": 100}},
    "versions": {"arc@25": 1.0},
}


@pytest.fixture
def evaluated(tree: RunTree) -> tuple[RunTree, SweepSnapshot]:
    """One point whose checkpoints 200 and 400 were evaluated."""
    point = tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3)
    for iteration in (200, 400):
        path = tree.root / "toy" / point / "eval_results" / f"iter_{iteration}" / "results.json"
        tree.write(path, json.dumps(HARNESS))
    return tree, take_snapshot(run_directories(read_jobs(tree.jobs)))


@pytest.fixture
def rows(evaluated: tuple[RunTree, SweepSnapshot]) -> list[EvaluationRow]:
    tree, snapshot = evaluated
    jobs = read_jobs(tree.jobs)
    return evaluation_rows(result_table(snapshot, jobs), snapshot, jobs)


def test_what_the_sweep_did_not_train_is_there_too(tree: RunTree) -> None:
    run_dir = tree.root / "old" / "a"
    tree.write(run_dir / "eval_results" / "iter_0" / "results.json", json.dumps(HARNESS))
    job = {"name": "old.a.evaluate", "point": "a", "stage": "evaluate", "kind": "evaluate"}
    tree.jobs.append(
        {**job, "branch": "evaluate", "run_dir": str(run_dir), "sweep_params": {"model": "/hf/a"}}
    )
    jobs = read_jobs(tree.jobs)
    snapshot = take_snapshot(run_directories(jobs))
    rows = evaluation_rows(result_table(snapshot, jobs), snapshot, jobs)
    assert {(row.point, row.branch, row.iteration, row.tokens) for row in rows} == {
        ("a", "evaluate", 0, None)
    }
    assert {row.measurement.name for row in rows} == {
        "arc@25/acc",
        "arc@25/acc_norm",
        "gsm8k/exact_match,strict-match",
    }
    assert rows[0].sweep_params == {"model": "/hf/a"}


def test_each_run_outside_the_sweep_has_rows_of_its_own(tree: RunTree) -> None:
    run_dir = tree.root / "old" / "p"
    for name, iteration in (("lr1", 20), ("lr1", 10), ("lr$(2)", 10)):
        path = run_dir / "runs" / name / "eval_results" / f"iter_{iteration}" / "results.json"
        tree.write(path, json.dumps(HARNESS))
    tree.write(run_dir / "runs" / "evaluate.json", "{}")
    for stage in ("evaluate", "again"):
        job = {"name": f"old.p.{stage}", "point": "p", "stage": stage, "kind": "evaluate"}
        tree.jobs.append({**job, "branch": "convert", "run_dir": str(run_dir), "sweep_params": {}})
    jobs = read_jobs(tree.jobs)
    snapshot = take_snapshot(run_directories(jobs))
    rows = evaluation_rows(result_table(snapshot, jobs), snapshot, jobs)
    of_one = [row for row in rows if row.measurement.name == "arc@25/acc"]
    assert [(row.point, row.branch, row.iteration) for row in of_one] == [
        ("p", "lr$(2)", 10),
        ("p", "lr1", 10),
        ("p", "lr1", 20),
    ]


def test_every_figure_of_every_checkpoint(rows: list[EvaluationRow]) -> None:
    assert [(row.iteration, row.measurement.name, row.measurement.value) for row in rows[:3]] == [
        (200, "arc@25/acc", 0.5),
        (200, "arc@25/acc_norm", 0.25),
        (200, "gsm8k/exact_match,strict-match", 0.125),
    ]
    assert [row.iteration for row in rows] == [200] * 3 + [400] * 3
    assert rows[0].tokens == 200 * BATCH * SEQ_LENGTH
    first, second, third = (row.measurement for row in rows[:3])
    assert (first.stderr, first.num_fewshot, first.samples, first.higher_is_better) == (0.02, 25, 100, True)
    assert (first.filter, first.version) == ("none", "1.0")
    assert (second.stderr, second.higher_is_better) == (None, None)
    assert (third.stderr, third.num_fewshot, third.filter) == (None, 0, "strict-match")


def test_written_tables(rows: list[EvaluationRow]) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert len(lines) == 6
    assert lines[3] == {
        **{"point": "h64_lr0.001", "branch": "pretrain", "param:num_layers": "2", "param:hidden_size": "64"},
        **{"param:lr": "0.001", "iteration": "400", "tokens": "1638400", "task": "arc@25", "metric": "acc"},
        **{
            "filter": "none",
            "value": "0.5",
            "stderr": "0.02",
            "num_fewshot": "25",
            "higher_is_better": "true",
        },
        **{"samples": "100", "version": "1.0"},
    }
    assert json.loads(to_json(rows))[3]["stderr"] == 0.02
    head, _, last = display_table(rows)
    assert head[4:] == ["arc@25/acc (25-shot)", "arc@25/acc_norm (25-shot)", "gsm8k/exact_match,strict-match"]
    assert last == ["h64_lr0.001", "pretrain", "400", "1.64M", "0.5 ±0.02", "0.25", "0.125"]
    assert "| h64_lr0.001 | pretrain | 400 | 1.64M | 0.5 ±0.02 | 0.25 | 0.125 |" in to_markdown(rows)


@pytest.mark.slow
def test_a_swept_number_of_examples_gets_columns(rows: list[EvaluationRow]) -> None:
    few = replace(rows[0].measurement, num_fewshot=5, value=0.75)
    other = replace(rows[0], point="other", measurement=few)
    heads, *lines = display_table([rows[0], other])
    assert heads[4:] == ["arc@25/acc (5-shot)", "arc@25/acc (25-shot)"]
    assert [line[4:] for line in lines] == [["–", "0.5 ±0.02"], ["0.75 ±0.02", "–"]]


@pytest.mark.slow
def test_the_report_has_it(evaluated: tuple[RunTree, SweepSnapshot], tmp_path: Path) -> None:
    tree, snapshot = evaluated
    report = write_report(snapshot, tree.jobs, tmp_path)
    assert [path.name for path in report.tables if path.stem == "evaluations"] == [
        f"evaluations.{kind}" for kind in ("csv", "json", "md")
    ]
    page = report.page.read_text()
    assert "<th>arc@25/acc (25-shot)</th>" in page
    assert "<td>0.5 ±0.02</td>" in page


def test_a_sweep_without_evaluations_has_none(tmp_path: Path) -> None:
    job = {"name": "n", "point": "p", "stage": "pretrain", "kind": "train", "run_dir": "/nowhere"}
    report = write_report(take_snapshot(["/nowhere"]), [job], tmp_path)
    assert report.evaluations == ()
    assert "Evaluations" not in report.page.read_text()
