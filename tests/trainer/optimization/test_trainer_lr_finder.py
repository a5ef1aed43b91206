"""The learning-rate finder: the search, its files, and the analysis of the curve."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_harness import (
    LOOP,
    MODEL,
    SCHEDULE,
    SCRIPTS,
    UPSTREAM_RELEASE,
    Data,
    Outcome,
    Trainer,
    pretrain_args,
)

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.results.plots.lr_searches import read_searches
from airflow_megatron.results.readings.snapshot import parse_snapshot, snapshot_script
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.spec.model.cluster_profile import load_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

sys.path.insert(0, str(SCRIPTS))

from megatron_core_trainer.optimization import lr_finder_options
from megatron_core_trainer.optimization.lr_curve import (
    CurveError,
    LossCurve,
    analyse,
    local_minima,
    read_curve,
    read_report,
    write_search,
)

ITERATIONS = 40
BLOWN_UP = (
    *("--train-iters", ITERATIONS, "--lr-finder-start-lr", "1e-4", "--lr-finder-end-lr", "1e4"),
    *("--lr-finder-smoothing", 0.6, "--lr-finder-stop-factor", 2, "--eval-iters", 0),
)


@pytest.fixture(scope="module")
def sweep(trainer: Trainer, data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """A sweep that ends when the loss blows up."""
    save = tmp_path_factory.mktemp("sweep")
    outcome = trainer.run("lr_finder.py", "sweep", *pretrain_args(data, save, BLOWN_UP))
    assert outcome.status == 0, outcome.stderr
    return outcome, save


def test_files_hold_the_sweep(sweep: tuple[Outcome, Path]) -> None:
    outcome, save = sweep
    with (save / "lr_finder" / "lr_finder_data.csv").open() as file:
        rows = list(csv.DictReader(file))
    rates = [float(row["learning_rate"]) for row in rows]
    raw = [float(row["raw_loss"]) for row in rows]
    assert 10 < len(rows) <= ITERATIONS
    for index, rate in enumerate(rates):
        assert rate == pytest.approx(1e-4 * 1e8 ** (index / (ITERATIONS - 1)), rel=1e-9)
    for line in list(outcome.lines.values())[: len(rows)]:
        assert float(line.loss) == pytest.approx(raw[line.iteration - 1], rel=1e-6)
    average = 0.0
    for index, row in enumerate(rows):
        average = 0.6 * average + 0.4 * raw[index]
        assert float(row["loss"]) == pytest.approx(average / (1 - 0.6 ** (index + 1)), rel=1e-12)
    found_rates, losses = read_curve(save)
    assert found_rates.tolist() == rates
    assert losses.tolist() == [float(row["loss"]) for row in rows]
    # The search stopped at the factor, or when the loss was NaN; no checkpoint was written.
    assert not (save / "latest_checkpointed_iteration.txt").exists()


def test_report_suggests_a_rate_that_trains(
    sweep: tuple[Outcome, Path], reference: tuple[Outcome, Path]
) -> None:
    outcome, save = sweep
    report = read_report(save / "lr_finder")
    assert report["optimizer"] == "adam"
    assert report["stopped_early"] == (report["iterations"] < ITERATIONS)
    assert f"suggested learning rate {report['suggested']:.6E}" in outcome.stdout
    assert {item["rule"] for item in report["suggestions"]} >= {"steepest descent"}
    # The tiny model of these tests learns well at 1e-2 (the reference run) and cannot at 10.
    assert 1e-4 < report["suggested"] < 1
    assert report["suggested"] < report["lowest"]["learning_rate"]
    assert float((save / "lr_finder" / "suggested_lr").read_text()) == report["suggested"]


def test_the_report_of_a_sweep_reads_it(sweep: tuple[Outcome, Path]) -> None:
    _, save = sweep
    answer = subprocess.run(
        ["sh", "-s"], input=snapshot_script([str(save)]), capture_output=True, text=True, check=True
    )
    job = {"name": "s.search", "stage": "search", "kind": "lr_finder", "run_dir": str(save)}
    (found,) = read_searches(parse_snapshot(answer.stdout), read_jobs([job]))
    report = read_report(save / "lr_finder")
    assert (found.optimizer, found.suggested) == ("adam", report["suggested"])
    assert (list(found.minima), found.blow_up) == (report["minima"], report["blow_up"])
    assert [found.lowest_rate, found.lowest_loss] == list(report["lowest"].values())
    rates, losses = read_curve(save)
    assert found.curve == tuple(zip(rates.tolist(), losses.tolist(), strict=True))


def upstream_words(upstream: Path, data: Data, save: Path, extra: Sequence[object]) -> list[object]:
    """Return a search of upstream's on the CPU, as a job's command line has it, after the interpreter."""
    machine = to_argv(load_cluster("local").trainer("megatron_lm").arguments, UPSTREAM_RELEASE)
    arguments = [*MODEL, *SCHEDULE, *LOOP, *data.args(), "--no-check-for-nan-in-loss-and-grad", *machine]
    script = upstream / "pretrain_gpt.py"
    cache = ["--data-cache-path", save / "cache"]
    return [SCRIPTS / "upstream_lr_finder.py", script, "--lr-finder-save", save, *arguments, *cache, *extra]


def test_the_search_with_upstream_gives_the_same_result(
    trainer: Trainer, data: Data, upstream: Path, sweep: tuple[Outcome, Path], tmp_path: Path
) -> None:
    words = upstream_words(upstream, data, tmp_path, [*BLOWN_UP, "--eval-interval", ITERATIONS])
    (outcome,) = trainer.run_ranks(1, *words, script="upstream_on_cpu.py")
    assert outcome.status == 0, outcome.stderr
    rates, losses = read_curve(tmp_path)
    ours = read_curve(sweep[1])
    assert 10 < len(rates) < ITERATIONS  # it stopped, too
    assert [*outcome.lines] == list(range(1, len(rates) + 1))
    # a line has the rate of the next step
    printed = [float(line.lr) for line in outcome.lines.values()]
    assert printed == pytest.approx(
        [1e-4 * 1e8 ** (step / (ITERATIONS - 1)) for step in outcome.lines], rel=1e-6
    )
    assert rates[1:] == pytest.approx(printed[: len(rates) - 1], rel=1e-6)
    alike = int(np.searchsorted(ours[0], 1e-1))
    assert alike > 10
    assert losses[:alike] == pytest.approx(ours[1][:alike], rel=1e-4)
    report, other = read_report(tmp_path / "lr_finder"), read_report(sweep[1] / "lr_finder")
    assert (report["optimizer"], report["stopped_early"]) == ("adam", True)
    assert report["suggested"] == pytest.approx(other["suggested"], rel=0.3)
    assert float((tmp_path / "lr_finder" / "suggested_lr").read_text()) == report["suggested"]
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "lr_finder"}


def test_a_search_that_upstream_ends_before_its_last_iteration_suggests_nothing(
    trainer: Trainer, data: Data, upstream: Path, tmp_path: Path
) -> None:
    """After a signal, for example, upstream saves a checkpoint and ends as if all was well."""
    extra = ["--train-iters", 12, "--lr-finder-end-lr", "1e-3", "--eval-interval", 12, "--exit-interval", 5]
    words = upstream_words(upstream, data, tmp_path, extra)
    (outcome,) = trainer.run_ranks(1, *words, script="upstream_on_cpu.py")
    assert outcome.status == 1
    assert "the search ended after 5 of 12 iterations and suggests no learning rate" in outcome.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


def test_the_last_stage_of_upstreams_pipeline_writes(
    trainer: Trainer, data: Data, upstream: Path, tmp_path: Path
) -> None:
    extra = ["--train-iters", 12, "--lr-finder-end-lr", "1e-3", "--eval-iters", 0, "--eval-interval", 12]
    words = upstream_words(upstream, data, tmp_path, [*extra, "--pipeline-model-parallel-size", 2])
    first, last = trainer.run_ranks(2, *words, script="upstream_on_cpu.py")
    assert (first.status, last.status) == (0, 0), last.stderr
    assert "learning-rate finder: suggested" in last.stdout
    assert "learning-rate finder" not in first.stdout
    rates, _ = read_curve(tmp_path)
    assert rates == pytest.approx(np.geomspace(1e-6, 1e-3, 12))
    report = read_report(tmp_path / "lr_finder")
    assert (report["iterations"], report["stopped_early"]) == (12, False)


def test_what_the_data_of_megatron_deepspeed_suggest(trainer: Trainer, tmp_path: Path) -> None:
    rates = 10.0 ** np.linspace(-6, 0, 100)
    (tmp_path / "lr_finder").mkdir()
    losses = 5 + (np.log10(rates) + 2) ** 2
    np.savez(tmp_path / "lr_finder" / "lr_finder_data.npz", learning_rates=rates, losses=losses)
    assert trainer.run("lr_finder.py", "suggest", tmp_path).status == 0
    suggested = float((tmp_path / "lr_finder" / "suggested_lr").read_text())
    assert suggested == pytest.approx(1e-3, rel=0.1)  # a tenth of the minimum's
    assert read_report(tmp_path / "lr_finder")["suggested"] == suggested


def test_losses_after_the_divergence_of_megatron_deepspeed_suggest_nothing(tmp_path: Path) -> None:
    rates = np.geomspace(1e-6, 1, 200)
    losses = 10 - 3 * np.exp(-((np.log10(rates) + 2.5) ** 2))
    (tmp_path / "lr_finder").mkdir()
    losses[rates > 0.1], losses[-1] = math.nan, 1.0
    np.savez(tmp_path / "lr_finder" / "lr_finder_data.npz", learning_rates=rates, losses=losses)
    found = analyse(*read_curve(tmp_path))
    assert found["suggested"] == pytest.approx(10**-3.5, rel=0.05)
    assert found["lowest"]["loss"] == pytest.approx(7, rel=1e-3)
    assert found["last_learning_rate"] <= 0.1


def test_comparison_and_plot(trainer: Trainer, sweep: tuple[Outcome, Path], tmp_path: Path) -> None:
    rates, losses = read_curve(sweep[1])
    other = LossCurve(
        0.0, 0.0, rates.tolist(), (losses * 2).tolist(), losses.tolist()
    )  # a power of two is exact
    other.write(tmp_path / "worse")
    outcome = trainer.run(
        *("lr_finder.py", "report", f"adam={sweep[1]}", tmp_path / "worse", "--output", tmp_path / "out"),
        *("--plot", "--current-lr", "1e-2"),
    )
    assert outcome.status == 0, outcome.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["lowest_loss"] == "adam"
    assert set(found["sweeps"]) == {"adam", "worse"}
    assert found["sweeps"]["worse"]["suggested"] == found["sweeps"]["adam"]["suggested"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    refused = trainer.run("lr_finder.py", "report", tmp_path / "nothing")
    assert refused.status == 2
    assert "holds no lr_finder_data.npz" in refused.stderr


def notes_routine(learning_rates: Any, losses: Any, share: float) -> list[float]:
    """The search of Megatron-DeepSpeed's notes, step by step, to compare with."""
    order = np.argsort(learning_rates)
    x, y = np.log10(learning_rates[order]), losses[order]
    window = max(5, int(len(y) * share) | 1)
    if window >= len(y):
        window = (len(y) - 1) | 1
    slope = np.gradient(np.convolve(y, np.ones(window) / window, mode="same"), x)
    limit = 1e-12 + 0.02 * np.median(np.abs(slope))
    found = []
    for i in range(len(slope) - 1):
        if slope[i] < -limit and slope[i + 1] > limit:
            found.append(x[i] - slope[i] * (x[i + 1] - x[i]) / (slope[i + 1] - slope[i]))
    return [10**turn for turn in found]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0.5, 20), min_size=12, max_size=150),
    st.sampled_from([0.03, 0.2]),
)
def test_minima_are_those_of_the_notes(losses: list[float], share: float) -> None:
    rates = np.geomspace(1e-6, 1, len(losses))
    ours = local_minima(rates, np.array(losses), share=share)
    theirs = notes_routine(rates, np.array(losses), share)
    # The notes' routine overlooks a minimum that has a nearly flat point next to it; all that it finds is found.
    assert [rate for rate in ours if any(rate == pytest.approx(other, rel=1e-9) for other in theirs)] == [
        pytest.approx(rate, rel=1e-9) for rate in theirs
    ]
    distance = np.diff(np.log10(local_minima(rates, np.array(losses), share=share, separation=0.4)))
    assert all(distance >= 0.4 - 1e-9)


def test_analysis_of_a_known_curve() -> None:
    rates = np.geomspace(1e-6, 1, 601)
    x = np.log10(rates)
    # A fall that is steepest at 1e-4, a minimum before a bump at 10^-2.6, a deeper one near 1e-2, then up and away.
    losses = 10 - 6 / (1 + np.exp(-4 * (x + 4))) + 0.9 * np.exp(-0.5 * ((x + 2.6) / 0.25) ** 2)
    losses = losses + np.where(x > -2, 60 * (x + 2) ** 2, 0)
    found = analyse(rates, losses)
    lowest = found["lowest"]["learning_rate"]
    assert losses[np.searchsorted(rates, lowest)] == pytest.approx(losses.min())
    assert found["minima"] == pytest.approx([10**-3.15, lowest], rel=0.15)
    assert found["steepest_descent"] == pytest.approx(1e-4, rel=0.1)
    assert found["suggested"] == found["minima"][1] / 10
    assert [item["learning_rate"] for item in found["suggestions"]][:2] == [
        rate / 10 for rate in found["minima"]
    ]
    # Above the first loss again where 60 (x + 2)^2 makes up for the fall of six.
    assert found["blow_up"] == pytest.approx(10 ** (-2 + math.sqrt(6 / 60)), rel=0.03)
    assert analyse(rates[x < -2.2], losses[x < -2.2])["blow_up"] is None


def test_noise_before_the_fall_suggests_nothing() -> None:
    rates = np.geomspace(1e-6, 1, 200)
    x = np.log10(rates)
    plateau = 0.01 * np.sin(6 * x) * (x < -3)
    # the loss still falls at the end of the search
    found = analyse(rates, 6 - np.where(x > -2, (x + 2), 0) + plateau)
    assert len(found["minima"]) >= 2
    assert max(found["minima"]) < 1e-2
    assert found["suggested"] == pytest.approx(0.1)
    assert len(found["suggestions"]) == len(found["minima"]) + 1


def test_a_search_without_a_suggestion_leaves_no_earlier_one(tmp_path: Path) -> None:
    rates = np.logspace(-5, 0, 60).tolist()
    long = LossCurve(0.0, 0.0)
    for rate in rates:
        long.add(rate, 6 - 2 * math.exp(-((math.log10(rate) + 2) ** 2)))
    write_search(tmp_path, long, {})
    assert (tmp_path / "lr_finder" / "suggested_lr").is_file()
    write_search(tmp_path, LossCurve(0.0, 0.0, [1.0], [2.0], [2.0]), {})
    assert sorted(path.name for path in (tmp_path / "lr_finder").iterdir()) == [
        "lr_finder_data.csv",
        "lr_finder_data.npz",
    ]


@pytest.mark.parametrize("end", ["inf", "nan", "1e-7"])
def test_limits_that_are_no_range(end: str) -> None:
    words = ["--lr-finder-save", "x", "--lr-finder-end-lr", end]
    found = lr_finder_options.problem(lr_finder_options.split("p", words)[0])
    assert found is not None
    assert f"--lr-finder-end-lr ({float(end)})" in found


def test_losses_that_are_not_numbers_end_a_search() -> None:
    curve = LossCurve(0.98, 4.0)
    assert not curve.add(1e-3, 5.0)
    assert not curve.add(1e-2, 6.0)
    assert curve.add(1e-1, math.nan)
    assert curve.raw_losses == [5.0, 6.0]
    assert LossCurve(0.0, 4.0, [1.0], [2.0], [2.0]).add(2.0, 8.1)
    assert not LossCurve(0.0, 0.0, [1.0], [2.0], [2.0]).add(2.0, 1e9)
    with pytest.raises(CurveError, match="too short"):
        analyse(np.array([1e-3, 1e-2]), np.array([1.0, 2.0]))
