"""The store of results as the pages read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stored_training import SWEEP, put, source, train

from airflow_megatron.results.readings.curve_points import kept_points
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.tables import (
    ATTEMPTS,
    EVALUATIONS,
    MEMORY,
    POINTS,
    STATES,
    VALIDATIONS,
)
from airflow_megatron.ui.live import stored
from airflow_megatron.ui.live.stored import StoredSweep

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SegmentStore:
    monkeypatch.setattr(stored, "default_root", lambda: str(tmp_path))
    monkeypatch.setattr(stored, "_PATIENCE", 0)
    return SegmentStore(str(tmp_path))


def test_progress_is_the_newest_iteration(store: SegmentStore) -> None:
    train(store, source("pretrain"), range(1, 41))
    put(store, VALIDATIONS, source("pretrain"), iteration=40, split="validation", loss=4.7, final=False)
    reading = StoredSweep(SWEEP).trainings()["p", "pretrain"]
    assert (reading.iteration, reading.train_iters, reading.loss) == (40, 100, pytest.approx(4.6))
    assert (reading.validation_loss, reading.step_s, reading.tflops) == (4.7, 0.5, 100.0)
    assert reading.tokens_per_iteration == 16 * 128
    train(store, source("pretrain"), range(41, 51))
    assert StoredSweep(SWEEP).trainings()["p", "pretrain"].iteration == 50


def test_the_memory_of_a_training_is_the_most_that_a_rank_has_reserved(store: SegmentStore) -> None:
    train(store, source("pretrain"), range(1, 3))
    for rank, reserved in ((0, 900.0), (1, 1500.0)):
        put(store, MEMORY, source("pretrain"), rank=rank, moment="2", max_reserved=reserved)
    assert StoredSweep(SWEEP).trainings()["p", "pretrain"].memory_mib == 1500.0
    put(store, MEMORY, source("pretrain"), rank=0, moment="9", max_reserved=1600.0)
    put(store, MEMORY, source("other"), rank=0, moment="9", max_reserved=1700.0)
    assert StoredSweep(SWEEP).trainings()["p", "pretrain"].memory_mib == 1600.0


def test_the_first_iterations_of_a_long_training_are_all_shown(store: SegmentStore) -> None:
    long = source("pretrain")
    train(store, long, range(1, 51), train_iters=1_000_000)
    (curve,) = StoredSweep(SWEEP).curves("loss", ["p"], 300)
    assert curve["x"] == list(range(1, 51))


def test_a_search_is_drawn_over_its_learning_rates(store: SegmentStore) -> None:
    train(store, source("search"), range(1, 41), rate=lambda iteration: 1e-6 * 1.5**iteration)
    (curve,) = StoredSweep(SWEEP).curves("loss", ["p"], 300)
    assert curve["rate"] == pytest.approx([1e-6 * 1.5**iteration for iteration in range(1, 41)], rel=1e-5)


def test_every_figure_of_an_evaluation_has_a_name(store: SegmentStore) -> None:
    figure = {"task": "arc@25", "metric": "acc", "value": 0.5, "stderr": 0.02, "chance": 0.25}
    for iteration in (20, 10):
        put(store, EVALUATIONS, source("pretrain"), iteration=iteration, **figure)
    put(
        store,
        EVALUATIONS,
        source("pretrain"),
        iteration=10,
        task="gsm8k",
        metric="exact",
        filter="strict",
        value=0.1,
    )
    put(store, EVALUATIONS, source("pretrain"), iteration=10, task="nan", metric="exact", value=float("nan"))
    found = StoredSweep(SWEEP).figures()
    assert [(one.name, one.iteration, one.value, one.chance) for one in found] == [
        ("arc@25/acc", 10, 0.5, 0.25),
        ("gsm8k/exact,strict", 10, 0.1, None),
        ("arc@25/acc", 20, 0.5, 0.25),
    ]


def test_a_branch_is_joined_to_its_trunk_and_its_cost(store: SegmentStore) -> None:
    for stage, parent in (("pretrain", None), ("cooldown", "pretrain")):
        put(store, POINTS, source(stage), swept="{}", gpus=2, parent=parent)
    train(store, source("pretrain"), range(1, 61))
    train(store, source("cooldown", job_id="2"), range(41, 51), loss=4.0)
    curves = {curve["stage"]: curve for curve in StoredSweep(SWEEP).curves("loss", ["p"], 300)}
    trunk, branch = curves["pretrain"], curves["cooldown"]
    assert trunk["x"] == list(range(1, 61))
    assert (branch["parent"], branch["x"]) == ("pretrain", list(range(40, 51)))
    assert (branch["y"][0], branch["y"][1]) == (trunk["y"][39], pytest.approx(3.59))
    for axis in ("tokens", "hours", "flops"):
        assert branch[axis] == sorted(branch[axis])
        assert branch[axis][-1] == pytest.approx(trunk[axis][49])
    assert trunk["flops"][-1] == pytest.approx(60 * 0.5 * 100e12 * 2)
    assert StoredSweep(SWEEP).curves("loss", ["another"], 300) == []
    assert StoredSweep(SWEEP).curves("reason", ["p"], 300) == []


def test_iterations_that_were_repeated_are_lost_and_not_in_the_curve(store: SegmentStore) -> None:
    train(store, source("pretrain"), range(1, 41))
    train(store, source("pretrain", attempt=2, job_id="2"), range(21, 51), loss=3.0)
    put(
        store,
        ATTEMPTS,
        source("pretrain"),
        outcome="retryable",
        reason="node n1 failed",
        gpu_hours=4.0,
        ended=9.0,
    )
    put(store, STATES, source("pretrain", 2, "2"), state="RUNNING")
    sweep = StoredSweep(SWEEP)
    (curve,) = sweep.curves("loss", ["p"], 300)
    assert curve["x"] == list(range(1, 51))
    assert curve["restarts"] == [21]
    cost = sweep.jobs()["p", "pretrain"]
    assert (cost.attempts, cost.gpu_hours, cost.lost, cost.state) == (2, 4.0, pytest.approx(2.0), "RUNNING")
    (failure,) = sweep.failures()
    assert (sweep.failure_count(), sweep.failures(0)) == (1, [])
    assert (failure["outcome"], failure["reason"], failure["ended"]) == ("retryable", "node n1 failed", 9.0)
    assert sweep.attempts("p") == [failure]
    assert sweep.attempts("q") == []


def test_a_sweep_of_which_nothing_is_stored(store: SegmentStore) -> None:
    empty = StoredSweep("nothing")
    assert (empty.trainings(), empty.jobs(), empty.failures(), empty.attempts("p")) == ({}, {}, [], [])
    for metric in ("loss", "validation_loss"):
        assert empty.curves(metric, ["p"], 300) == []


def test_validation_losses_stand_at_the_cost_of_their_iterations(store: SegmentStore) -> None:
    train(store, source("pretrain"), range(1, 41))
    for number in (10, 20):
        put(
            store,
            VALIDATIONS,
            source("pretrain"),
            iteration=number,
            split="validation",
            loss=5.0,
            final=False,
        )
    (curve,) = StoredSweep(SWEEP).curves("validation_loss", ["p"], 300)
    assert (curve["x"], curve["tokens"]) == ([10, 20], [10 * 2048, 20 * 2048])


def test_a_long_curve_keeps_its_ends_and_spikes() -> None:
    y = [1.0] * 10_000
    y[7_123], y[4_000] = 9.0, -3.0
    kept = kept_points(range(10_000), y, 300)
    assert {0, 4_000, 7_123, 9_999} <= set(kept)
    assert len(kept) <= 300
    assert kept == sorted(kept)
    assert kept_points([1, 2], [1.0, 2.0], 2) == [0, 1]


def test_a_training_whose_loss_is_no_number_has_diverged(store: SegmentStore) -> None:
    train(store, source("pretrain"), range(1, 41))
    assert not StoredSweep(SWEEP).trainings()["p", "pretrain"].diverged
    train(store, source("pretrain"), range(41, 42), losses={}, skipped_iterations=1, nan_iterations=0)
    assert not StoredSweep(SWEEP).trainings()["p", "pretrain"].diverged
    # the job was killed while it wrote the line
    train(store, source("pretrain"), range(42, 43), losses={}, torn=True)
    assert not StoredSweep(SWEEP).trainings()["p", "pretrain"].diverged
    train(store, source("pretrain"), range(43, 44), losses={}, skipped_iterations=0, nan_iterations=1)
    assert StoredSweep(SWEEP).trainings()["p", "pretrain"].diverged
    train(store, source("pretrain"), range(44, 46))
    assert not StoredSweep(SWEEP).trainings()["p", "pretrain"].diverged


def test_a_training_that_megatron_stopped_at_a_nan_has_diverged_until_the_next_attempt(
    store: SegmentStore,
) -> None:
    train(store, source("pretrain"), range(1, 41))
    put(store, ATTEMPTS, source("pretrain"), outcome="failed", signature="nan_in_training")
    assert StoredSweep(SWEEP).trainings()["p", "pretrain"].diverged
    put(store, STATES, source("pretrain", 2, "2"), state="RUNNING")
    assert not StoredSweep(SWEEP).trainings()["p", "pretrain"].diverged
