"""The points at which branches leave their trunk, from their logs, and the savings of a shared trunk."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from run_tree import BATCH, iteration_line, take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.results.tables.branch_points import (
    branch_points,
    branches_json,
    display_table,
    shared_compute,
)
from airflow_megatron.results.tables.trainings import result_table

if TYPE_CHECKING:
    from run_tree import RunTree

    from airflow_megatron.results.tables.trainings import ResultTable

PEAK, NOW = 1e-2, datetime(2026, 11, 21, 9)
SCHEDULE = {
    "lr": PEAK,
    "min_lr": 0.0,
    "lr_decay_style": "WSD",
    "lr_wsd_decay_style": "linear",
    "lr_warmup_iters": 2,
}


def write_training(tree: RunTree, name: str, rates: dict[int, float], end: int, more: str = "") -> None:
    lines = [iteration_line(iteration, end, 3.0, rate, NOW) for iteration, rate in rates.items()]
    tree.write(tree.root / name / "logs" / f"{name}-1.out", more + "".join(lines))


def job(
    tree: RunTree, name: str, end: int, parent: str | None = None, at: int | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "point": "p",
        "stage": name,
        "kind": "train",
        "branch": name,
        "run_dir": str(tree.root / name),
        "release": "core_v0.16.1",
        "iteration": at,
        "params": {
            **SCHEDULE,
            "train_iters": end,
            "lr_decay_iters": end,
            "lr_wsd_decay_iters": 10,
            "nodes": 2,
        },
        "depends_on": [{"job": parent, "until": f"checkpoint {at}"}] if parent else [],
    }


def loaded(iteration: int) -> str:
    return f"  successfully loaded checkpoint from /r/checkpoints [ t 1/1, p 1/1 ] at iteration {iteration}\n"


def trained(tree: RunTree, rates: dict[int, float], more: str) -> ResultTable:
    """Return a trunk of 60 iterations, and a branch of 10 planned from checkpoint 40."""
    jobs = [job(tree, "trunk", 60), job(tree, "cooldown", 50, "trunk", 40)]
    write_training(tree, "trunk", dict.fromkeys(range(10, 61, 10), PEAK), 60)
    write_training(tree, "cooldown", rates, 50, more)
    return result_table(
        take_snapshot([str(tree.root / name) for name in ("trunk", "cooldown")]), read_jobs(jobs)
    )


def test_a_branch_that_continues_training(tree: RunTree) -> None:
    (point,) = branch_points(trained(tree, {41: 0.9 * PEAK, 50: 0.0}, loaded(40)))
    assert (point.checkpoint, point.first_iteration, point.problems) == (40, 41, ())
    assert (point.trunk_rate, point.first_rate) == (PEAK, 9e-3)
    assert point.expected_rate == pytest.approx(9e-3)
    assert display_table([point])[1] == [
        "p",
        "cooldown",
        "trunk",
        "40",
        "41",
        "0.01",
        "0.009",
        "0.009",
        "yes",
    ]


@pytest.mark.parametrize(
    ("more", "first", "problems"),
    [
        (loaded(40), 41, ()),
        (loaded(30), 31, ("loaded checkpoint 30 instead of 40",)),
        ("", 1, ("started from scratch, at iteration 1, without a checkpoint",)),
    ],
)
def test_a_training_from_a_checkpoint_outside_the_sweep(
    tree: RunTree, more: str, first: int, problems: tuple[str, ...]
) -> None:
    planned = {
        **job(tree, "longer", 60, at=40),
        "source": {"path": "/old/run", "iteration": 40, "mode": "continue"},
    }
    write_training(tree, "longer", {first: PEAK, 60: PEAK}, 60, more)
    snapshot = take_snapshot([str(tree.root / "longer")])
    table = result_table(snapshot, read_jobs([planned]))
    (point,) = branch_points(table)
    assert (point.parent_branch, point.first_iteration, point.problems) == ("/old/run", first, problems)
    assert shared_compute(table, [point]) is None
    planned["source"] = {**planned["source"], "mode": "finetune"}
    assert branch_points(result_table(snapshot, read_jobs([planned]))) == []


@pytest.mark.parametrize(
    ("rates", "more", "problem"),
    [
        ({41: PEAK}, loaded(40), "the learning rate at iteration 41 is 0.01, where its schedule has 0.009"),
        ({31: PEAK}, loaded(30), "loaded checkpoint 30 instead of 40"),
        ({1: 5e-3}, "", "started from scratch, at iteration 1, without a checkpoint"),
        ({40: PEAK}, loaded(40), "continues at iteration 40 after checkpoint 40"),
    ],
)
def test_one_that_does_not(tree: RunTree, rates: dict[int, float], more: str, problem: str) -> None:
    (point,) = branch_points(trained(tree, rates, more))
    assert point.problems == (problem,)


def test_one_that_begins_anew_on_purpose(tree: RunTree) -> None:
    table = trained(tree, {1: 5e-3}, "")
    rows = [replace(branch.job, params={**branch.job.params, "finetune": True}) for branch in table.branches]
    assert branch_points(result_table(take_snapshot([row.run_dir for row in rows]), rows)) == []


def test_samples_that_are_counted_anew(tree: RunTree) -> None:
    table = trained(tree, {41: 0.9 * PEAK}, loaded(40))
    log = tree.root / "cooldown" / "logs" / "cooldown-1.out"
    log.write_text(log.read_text().replace(f"{41 * BATCH:12d}", f"{BATCH:12d}"))
    jobs = [branch.job for branch in table.branches]
    (point,) = branch_points(result_table(take_snapshot([found.run_dir for found in jobs]), jobs))
    assert point.problems == ("has consumed 16 samples at iteration 41 instead of 656",)


def test_a_rate_that_jumps_at_the_checkpoint(tree: RunTree) -> None:
    table = trained(tree, {41: 0.9 * PEAK}, loaded(40))
    log = tree.root / "trunk" / "logs" / "trunk-1.out"
    log.write_text(log.read_text().replace("1.000000E-02", "2.000000E-02"))
    jobs = [branch.job for branch in table.branches]
    (point,) = branch_points(result_table(take_snapshot([found.run_dir for found in jobs]), jobs))
    assert point.problems == ("the learning rate jumps from 0.02 to 0.01 at iteration 40",)


def with_params(table: ResultTable, **params: object) -> ResultTable:
    """Read the trainings again, with other arguments in both jobs."""
    jobs = [replace(branch.job, params={**branch.job.params, **params}) for branch in table.branches]
    return result_table(take_snapshot([found.run_dir for found in jobs]), jobs)


def test_iterations_that_the_loss_scaler_skipped_do_not_advance_the_schedule(tree: RunTree) -> None:
    table = trained(tree, {41: 0.95 * PEAK}, loaded(40))
    log = tree.root / "trunk" / "logs" / "trunk-1.out"
    lines = log.read_text().splitlines(keepends=True)
    for line, skipped in ((0, 5), (4, 30)):  # iterations 10 and 50; only those before the checkpoint count
        lines[line] = lines[line].replace("skipped iterations:   0", f"skipped iterations: {skipped:3d}")
    log.write_text("".join(lines))
    # 41 iterations, 5 of them skipped; the decay begins at 35
    (point,) = branch_points(with_params(table, lr_wsd_decay_iters=20, lr_decay_iters=55))
    assert point.expected_rate == pytest.approx(0.95 * PEAK)
    assert point.problems == ()


def test_a_skipped_first_iteration_of_a_branch(tree: RunTree) -> None:
    table = trained(tree, {41: PEAK}, loaded(40))
    log = tree.root / "cooldown" / "logs" / "cooldown-1.out"
    log.write_text(log.read_text().replace("skipped iterations:   0", "skipped iterations:   1"))
    (point,) = branch_points(with_params(table))
    assert (point.expected_rate, point.problems) == (PEAK, ())


def test_the_schedule_of_the_checkpoint(tree: RunTree) -> None:
    table = trained(tree, {41: PEAK}, loaded(40))
    (point,) = branch_points(with_params(table, use_checkpoint_opt_param_scheduler=True))
    assert (point.expected_rate, point.problems) == (None, ())


def test_inverse_square_root_without_warmup(tree: RunTree) -> None:
    rate = PEAK / (41 * BATCH) ** 0.5
    table = trained(tree, {41: rate}, loaded(40))
    log = tree.root / "trunk" / "logs" / "trunk-1.out"
    before = PEAK / (40 * BATCH) ** 0.5
    log.write_text(log.read_text().replace("1.000000E-02", f"{before:.6E}"))
    params = {"lr_decay_style": "inverse-square-root", "lr_warmup_iters": 0, "global_batch_size": BATCH}
    (point,) = branch_points(with_params(table, **params))
    assert point.expected_rate == pytest.approx(rate)
    assert point.problems == ()


def test_a_branch_in_the_warmup_that_does_not_begin_at_zero(tree: RunTree) -> None:
    table = trained(tree, {41: 0.2 * PEAK + 0.8 * PEAK * 41 / 48}, loaded(40))
    log = tree.root / "trunk" / "logs" / "trunk-1.out"
    log.write_text(log.read_text().replace("1.000000E-02", f"{0.2 * PEAK + 0.8 * PEAK * 40 / 48:.6E}"))
    params = {"lr_warmup_iters": 48, "lr_warmup_init": 0.2 * PEAK, "lr_wsd_decay_iters": 1}
    (point,) = branch_points(with_params(table, **params))
    assert point.problems == ()


def test_what_sharing_saves(tree: RunTree) -> None:
    """A trunk of 60 and cooldowns of 10 from 20, 40 and 60; an unrelated training does not count."""
    jobs = [job(tree, "trunk", 60), job(tree, "other", 60)]
    write_training(tree, "trunk", dict.fromkeys(range(10, 61, 10), PEAK), 60)
    write_training(tree, "other", dict.fromkeys(range(10, 61, 10), PEAK), 60)
    for at in (20, 40, 60):
        jobs.append(job(tree, f"from{at}", at + 10, "trunk", at))
        write_training(tree, f"from{at}", {at + 1: 0.9 * PEAK, at + 10: 0.0}, at + 10, loaded(at))
    table = result_table(take_snapshot([one["run_dir"] for one in jobs]), read_jobs(jobs))
    points = branch_points(table)
    shared = shared_compute(table, points)
    assert shared is not None
    assert (shared.branches, shared.trained, shared.separate) == (3, 60 + 30, 30 + 50 + 70)
    # 60 iterations of 125 ms on two processes
    assert shared.gpu_hours_saved == pytest.approx(60 * 0.125 * 2 / 3600)
    assert shared.text == (
        "3 branches: 90 iterations trained, trunks included; 150 if each had been trained from its beginning."
        " Saved: 40%, 0.00417 GPU-hours."
    )
    written = json.loads(branches_json(points, shared))
    assert [point["checkpoint"] for point in written["branches"]] == [20, 40, 60]
    assert written["shared"]["separate"] == 150


def test_a_trunk_that_continues_is_a_separate_result(tree: RunTree) -> None:
    """A trunk of 60 and one cooldown of 10 from 20: two results that would have taken 60 and 30."""
    jobs = [{**job(tree, "trunk", 60), "gpus": False}]
    write_training(tree, "trunk", dict.fromkeys(range(10, 61, 10), PEAK), 60)
    jobs.append({**job(tree, "from20", 30, "trunk", 20), "gpus": False})
    write_training(tree, "from20", {21: 0.9 * PEAK, 30: 0.0}, 30, loaded(20))
    table = result_table(take_snapshot([one["run_dir"] for one in jobs]), read_jobs(jobs))
    shared = shared_compute(table, branch_points(table))
    assert shared is not None
    assert (shared.branches, shared.trunks, shared.trained, shared.separate) == (1, 1, 70, 90)
    assert shared.gpu_hours_saved == pytest.approx(20 * 0.125 * 2 / 3600)
    assert "1 branch and 1 trunk that continued beyond them" in shared.text
    assert "Saved: 22%" in shared.text
    assert "GPU-hours" not in shared.text


def test_a_sweep_without_branches(tree: RunTree) -> None:
    write_training(tree, "trunk", {10: PEAK}, 60)
    table = result_table(take_snapshot([str(tree.root / "trunk")]), read_jobs([job(tree, "trunk", 60)]))
    assert branch_points(table) == []
    assert shared_compute(table, []) is None
