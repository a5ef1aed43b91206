"""Figures of the report as data: fits, compute, evaluations and learning rate × batch."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from run_tree import RunTree, take_snapshot

from airflow_megatron.results.fits.sweep_fits import fit_sweep
from airflow_megatron.results.fits.sweep_runs import FinishedRun, SweepRuns
from airflow_megatron.results.plots.charts import Chart, Panel, Series, draw_charts
from airflow_megatron.results.plots.fit_charts import fit_charts
from airflow_megatron.results.plots.lr_batch_maps import draw_maps
from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.tables.trainings import result_table

if TYPE_CHECKING:
    from pathlib import Path


def loss(n: float, d: float) -> float:
    return 1.7 + 400 / n**0.34 + 410 / d**0.28


def run(n: float, d: float, rate: float | None = None) -> FinishedRun:
    best = 3e-3 * (n / 3e8) ** -0.5
    value = loss(n, d) * (math.exp(0.012 * math.log(rate / best) ** 2) if rate else 1)
    counts: dict[str, float | None] = {"unpadded": n, "total": n}
    return FinishedRun("p", "b", counts, d, rate, 4e5 if rate else None, value)


@pytest.mark.slow
def test_runs_of_equal_compute_have_their_valleys_and_best_sizes() -> None:
    runs = [
        run(n, c / 6 / n)
        for c in (1e18, 1e19, 1e20, 1e21)
        for n in (c**0.5 * 0.09 * 2.0**step for step in range(-4, 5))
    ]
    fits = fit_sweep(SweepRuns(tuple(runs), "validation", ()))
    charts = {chart.name: chart for chart in fit_charts(fits)}
    valleys, sizes, tokens, ratio = charts["equal_compute"].panels
    assert [len(series.points) for series in valleys.series if series.line] == [9, 9, 9, 9]
    assert sum(series.name == "best N" for series in valleys.series) == 4
    law = next(series for series in sizes.series if series.name == "law of the loss")
    of_tokens = next(series for series in tokens.series if series.name == "law of the loss")
    of_ratio = next(series for series in ratio.series if series.name == "law of the loss")
    for (c, n), (_, d), (_, per) in zip(law.points, of_tokens.points, of_ratio.points, strict=True):
        assert 6 * n * d == pytest.approx(c)
        assert per == pytest.approx(d / n)
    for (low, high), (_, n) in zip(law.y_ranges, law.points, strict=True):
        assert low < n < high


def test_a_valley_for_each_size_with_its_optimum_and_the_laws_of_it() -> None:
    rates = [3e-3 * 2.0**step for step in range(-4, 4)]
    runs = [run(n, 20 * n, rate) for n in (1e8, 3e8, 1e9) for rate in rates]
    fits = fit_sweep(SweepRuns(tuple(runs), "validation", ()))
    charts = {chart.name: chart for chart in fit_charts(fits)}
    assert [panel.title.split(",")[0] for panel in charts["optima"].panels] == ["N 100M", "N 300M", "N 1B"]
    for panel, best in zip(charts["optima"].panels, (3e-3 * 3**0.5, 3e-3, 3e-3 * 0.3**0.5), strict=True):
        (optimum,) = (series for series in panel.series if series.name == "fitted optimum")
        ((low, high),) = optimum.x_ranges
        assert low < best < high
    names = {series.name for panel in charts["optimum_laws"].panels for series in panel.series}
    assert {"optimum", "our law", "StepLaw", "DeepSeek"} <= names


@pytest.mark.slow
def test_what_is_no_number_is_left_out_and_the_data_are_json() -> None:
    points = ((1.0, 2.0), (2.0, math.nan), (math.inf, 3.0), (3.0, 4.0))
    ranges = tuple((y - 1, math.inf) for _, y in points)
    series = Series("<a>$x$", points, 0, line=True, y_ranges=ranges)
    chart = Chart("name", "title", "note", (Panel("p", "x", "y", (series,), log_x=False),))
    data = json.loads(json.dumps(chart.to_json(), allow_nan=False))
    (written,) = data["panels"][0]["series"]
    assert (written["x"], written["y"]) == ([1.0, 3.0], [2.0, 4.0])
    assert written["yRanges"] == [[1.0, None], [3.0, None]]
    (plot,) = draw_charts([chart])
    assert b"$x$" in plot.svg.replace(b"\\", b"")


@pytest.mark.slow
def test_a_map_of_learning_rate_and_batch(tmp_path: Path) -> None:
    planned = []
    for batch in (16, 32, 64):
        tree = RunTree(tmp_path / str(batch))
        for rate in (1e-3, 2e-3, 4e-3):
            tree.add_point({"num_layers": 2, "hidden_size": 64}, 1000, rate, train_iters=40, seed=batch)
        for job in tree.jobs:
            job["point"] = f"{job['point']}_b{batch}"
            job["sweep_params"] = {**job["sweep_params"], "global_batch_size": batch}
        planned += tree.jobs
    jobs = read_jobs(planned)
    (plot,) = draw_maps(result_table(take_snapshot(run_directories(jobs)), jobs))
    svg = plot.svg.decode()
    for text in ("0.001", "0.004", ">64<", "hidden_size=64", "lowest loss"):
        assert text in svg
    assert draw_maps(result_table(take_snapshot(["/nowhere"]), [])) == []
