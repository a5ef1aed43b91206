from __future__ import annotations

import numpy as np
import pytest
from synthetic_sweeps import rate_sweep

from airflow_megatron.results.fits.optima import Cell, Optimum, find_optima
from airflow_megatron.results.fits.refusals import FitRefusedError

RATES = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]


def parabola(rates: list[float], best: float, bend: float = 0.01) -> list[float]:
    return [3.0 * float(np.exp(bend * np.log(rate / best) ** 2)) for rate in rates]


def fitted(cell: Cell) -> Optimum:
    found = find_optima({"a": cell})["a"]
    assert isinstance(found, Optimum), str(found)
    return found


def refusal(cell: Cell) -> str:
    found = find_optima({"a": cell})["a"]
    assert isinstance(found, FitRefusedError)
    return str(found)


def test_a_parabola_without_noise_is_recovered() -> None:
    found = fitted(Cell({"lr": RATES}, parabola(RATES, 3.3e-3)))
    assert found.settings["lr"].value == pytest.approx(3.3e-3, rel=0.01)
    assert found.loss.value == pytest.approx(3.0, rel=1e-4)
    assert found.near_edge == ()
    assert found.settings["lr"].low <= 3.3e-3 <= found.settings["lr"].high


def test_a_skewed_valley_without_noise_is_recovered() -> None:
    away = np.log(np.array(RATES) / 4.5e-3)
    losses = 3.0 * np.exp(0.01 * away**2 * (1 + 0.2 * away))
    found = fitted(Cell({"lr": RATES}, losses.tolist()))
    assert found.settings["lr"].value == pytest.approx(4.5e-3, rel=0.01)


def test_a_grid_of_rate_and_batch_without_noise_is_recovered() -> None:
    batches = [2.0**power for power in range(15, 21)]
    grid = [(rate, batch) for rate in RATES for batch in batches]
    x = np.array([np.log(rate / 3e-3) for rate, _ in grid])
    y = np.array([np.log(batch / 2**17.5) for _, batch in grid])
    losses = 2.5 * np.exp(0.01 * x**2 + 0.006 * y**2 - 0.006 * x * y)
    found = fitted(Cell({"lr": [r for r, _ in grid], "batch": [b for _, b in grid]}, losses.tolist()))
    assert found.settings["lr"].value == pytest.approx(3e-3, rel=0.01)
    assert found.settings["batch"].value == pytest.approx(2**17.5, rel=0.01)


@pytest.mark.parametrize(("best", "way"), [(5e-2, "larger"), (3e-4, "smaller")])
def test_an_optimum_at_the_edge_is_refused(best: float, way: str) -> None:
    text = refusal(Cell({"lr": RATES}, parabola(RATES, best)))
    assert "lr is at the edge" in text
    assert f"train {way} values" in text


def test_losses_that_only_fall_are_at_the_edge() -> None:
    text = refusal(Cell({"lr": RATES}, [3 - 0.1 * np.sqrt(index) for index in range(len(RATES))]))
    assert "still fall at the largest value tested, 0.032" in text


def test_noise_without_a_valley_is_refused() -> None:
    rng = np.random.default_rng(5)
    losses = (
        3 * np.exp(0.002 * rng.standard_normal(len(RATES)) + 1e-5 * np.log(np.array(RATES) / 4e-3) ** 2)
    ).tolist()
    text = refusal(Cell({"lr": RATES}, losses))
    assert any(words in text for words in ("too little curvature", "no minimum", "at the edge"))


@pytest.mark.parametrize("count", [2, 4])
def test_too_few_values_are_refused(count: int) -> None:
    text = refusal(Cell({"lr": RATES[:count]}, parabola(RATES[:count], 1e-3)))
    assert text == f"{count} values of lr have finished: an optimum needs 5, spaced by a factor of 1.5 to 3"


def test_equal_settings_are_refused() -> None:
    text = refusal(Cell({"lr": [1e-3] * 6, "batch": [2**18] * 6}, [3.0] * 6))
    assert text == "all runs have the same learning rate and batch: vary at least one of them"


def test_a_small_grid_that_spans_no_surface_is_refused() -> None:
    settings = {"lr": [1e-3, 2e-3, 4e-3] * 2, "batch": [2**16, 2**17, 2**18] * 2}
    assert "6 runs have finished" in refusal(Cell(settings, [3.0, 2.9, 3.0] * 2))


def test_an_interval_beyond_the_tested_values_is_marked() -> None:
    rates = np.geomspace(1e-3, 1.6e-2, 9).tolist()
    losses = np.array(parabola(rates, 1.45e-2)) * np.exp(3e-4 * np.array([1, -1, 1, -1, 1, -1, 1, -1, 1]))
    assert fitted(Cell({"lr": rates}, losses.tolist())).near_edge == ("lr",)


@pytest.mark.slow
def test_intervals_cover_the_optimum() -> None:
    rng = np.random.default_rng(11)
    inside = refused = count = 0
    for _ in range(50):
        sweep = rate_sweep(rng)
        for name, found in find_optima(sweep.cells).items():
            if name in sweep.fittable:
                count += 1
                if isinstance(found, Optimum):
                    rate = found.settings["lr"]
                    inside += rate.low <= sweep.optima[name] <= rate.high
                else:
                    refused += 1
    # sizes of a sweep share its noise: at least 50 independent trials, 0.95 of which have a standard error of 0.03
    assert inside / (count - refused) >= 0.86
    assert refused / count <= 0.10
