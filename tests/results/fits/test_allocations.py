from __future__ import annotations

import numpy as np
import pytest
from synthetic_sweeps import Surface, loss_sweep, random_surface, trunk_isoflop_sweep, trunk_sweep

from airflow_megatron.results.fits.allocations import approach_1, approach_2
from airflow_megatron.results.fits.refusals import FitRefusedError

SYMMETRIC = Surface(1.69, 400, 400, 0.31, 0.31)


def curves(sizes: int = 9) -> tuple[list[float], list[float], list[float]]:
    """Return every size on seven token budgets, around the best size of each compute budget."""
    n = np.repeat(np.geomspace(3e7, 3e9, sizes), 7)
    d = n * np.tile(np.geomspace(0.05, 20, 7), sizes)
    return n.tolist(), d.tolist(), SYMMETRIC.loss(n, d).tolist()


def slices() -> tuple[list[float], list[float], list[float]]:
    """Return nine sizes at each of four compute budgets."""
    budgets = np.repeat(np.geomspace(1e18, 1e21, 4), 9)
    n = np.array([SYMMETRIC.best_size(budget) for budget in budgets]) * np.tile(np.geomspace(0.25, 4, 9), 4)
    d = budgets / 6 / n
    return n.tolist(), d.tolist(), SYMMETRIC.loss(n, d).tolist()


def test_approach_1_finds_the_exponent_of_a_symmetric_surface() -> None:
    exponent = approach_1(*curves()).exponent("C")
    assert exponent.value == pytest.approx(0.5, abs=0.06)
    assert exponent.low <= 0.5 <= exponent.high


@pytest.mark.parametrize("sizes", [4, 5, 7])
def test_approach_1_takes_few_sizes(sizes: int) -> None:
    n = np.repeat(np.geomspace(3e7, 2e9, sizes), 4)
    d = n * np.tile(np.geomspace(5, 320, 4), sizes)
    chinchilla = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
    law = approach_1(n.tolist(), d.tolist(), chinchilla.loss(n, d).tolist())
    assert law.exponent("C").value == pytest.approx(0.28 / 0.62, abs=0.01)
    assert law.at(C=1e21).value == pytest.approx(chinchilla.best_size(1e21), rel=0.03)


@pytest.mark.slow
def test_approach_1_covers_noisy_sweeps() -> None:
    rng, covered = np.random.default_rng(8), []
    for _ in range(60):
        surface = random_surface(rng)
        n, d, losses = loss_sweep(rng, surface)
        try:
            exponent = approach_1(n.tolist(), d.tolist(), losses.tolist()).exponent("C")
        except FitRefusedError:
            continue
        true = surface.beta / (surface.alpha + surface.beta)
        covered.append(exponent.low <= true <= exponent.high)
    assert len(covered) >= 15
    assert np.mean(covered) >= 0.85


@pytest.mark.slow
def test_approach_2_covers_cooldowns_that_share_trunks() -> None:
    rng, covered = np.random.default_rng(8), []
    for _ in range(60):
        surface = random_surface(rng)
        n, d, losses = trunk_isoflop_sweep(rng, surface)
        try:
            exponent = approach_2(n.tolist(), d.tolist(), losses.tolist()).exponent("C")
        except FitRefusedError:
            continue
        covered.append(exponent.low <= surface.beta / (surface.alpha + surface.beta) <= exponent.high)
    assert len(covered) >= 45
    assert np.mean(covered) >= 0.85


def test_approach_1_counts_the_noise_that_cooldowns_share() -> None:
    n, d, losses = trunk_sweep(np.random.default_rng(3), Surface(1.69, 406.4, 410.7, 0.34, 0.28))
    runs = n.tolist(), d.tolist(), losses.tolist()
    alone, shared = approach_1(*runs).exponent("C"), approach_1(*runs, n.tolist()).exponent("C")
    assert shared.half_width > 1.5 * alone.half_width
    assert shared.low < 0.28 / 0.62 < shared.high


def test_approach_1_needs_sizes_on_both_sides_of_the_optimum() -> None:
    n = np.repeat(np.geomspace(3e7, 3e9, 6), 5)
    d = n * np.tile(np.geomspace(1000, 30000, 5), 6)
    with pytest.raises(FitRefusedError, match="the lowest loss passes from a size to the next at 0 budgets"):
        approach_1(n.tolist(), d.tolist(), SYMMETRIC.loss(n, d).tolist())


def test_approach_1_needs_noise_that_can_be_measured() -> None:
    n = np.repeat(np.geomspace(3e7, 3e9, 6), 3)
    d = n * np.tile(np.geomspace(0.05, 20, 3), 6)
    with pytest.raises(FitRefusedError, match="no size has more than 3 token budgets"):
        approach_1(n.tolist(), d.tolist(), SYMMETRIC.loss(n, d).tolist())


def test_approach_2_finds_the_exponent_of_a_symmetric_surface() -> None:
    law = approach_2(*slices())
    assert law.exponent("C").value == pytest.approx(0.5, abs=0.005)
    assert law.at(C=1e22).value == pytest.approx(SYMMETRIC.best_size(1e22), rel=0.05)


def test_approach_1_needs_sizes() -> None:
    with pytest.raises(FitRefusedError, match="3 sizes are too few for approach 1: it needs 4"):
        approach_1(*curves(3))


def test_approach_1_needs_budgets_of_each_size() -> None:
    n = np.geomspace(3e7, 3e9, 6)
    with pytest.raises(FitRefusedError, match="0 sizes have 3 token budgets"):
        approach_1(n.tolist(), (20 * n).tolist(), SYMMETRIC.loss(n, 20 * n).tolist())


def test_approach_2_needs_equal_compute() -> None:
    n = np.geomspace(3e7, 3e9, 6)
    with pytest.raises(FitRefusedError, match="no runs have the same compute"):
        approach_2(n.tolist(), (20 * n).tolist(), SYMMETRIC.loss(n, 20 * n).tolist())


def test_approach_2_needs_budgets() -> None:
    sizes, tokens, losses = (values[:18] for values in slices())
    with pytest.raises(FitRefusedError, match="2 compute budgets have a best size, a law needs 3"):
        approach_2(sizes, tokens, losses)
