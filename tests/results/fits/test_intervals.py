from __future__ import annotations

import numpy as np
import pytest

from airflow_megatron.results.fits.intervals import Estimate, mixed_regression, moderated_variances


def test_an_interval_is_students() -> None:
    estimate = Estimate.of(1.0, 0.1, 4)
    assert estimate.half_width == pytest.approx(0.27764, rel=1e-4)
    assert Estimate.of(0.0, 0.0, 4).exp() == Estimate(1.0, 1.0, 1.0)


def test_a_line_without_noise_is_recovered() -> None:
    x = np.linspace(0, 3, 6)
    fit = mixed_regression(np.stack([np.ones(6), x], 1), 2 - 0.7 * x, np.full(6, 0.01))
    assert fit.coefficients == pytest.approx([2, -0.7])
    assert fit.between == 0


def test_scatter_beyond_the_errors_is_found() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(0, 3, 400)
    values = 1 + x + 0.3 * rng.standard_normal(400) + 0.1 * rng.standard_normal(400)
    fit = mixed_regression(np.stack([np.ones(400), x], 1), values, np.full(400, 0.01))
    assert fit.between == pytest.approx(0.3, rel=0.12)


def test_equal_noises_are_pooled_and_unequal_ones_are_not() -> None:
    rng = np.random.default_rng(1)
    equal = rng.chisquare(3, 40) / 3
    pooled, dofs = moderated_variances(equal.tolist(), [3.0] * 40)
    assert np.ptp(pooled) < 0.35 * np.ptp(equal)
    assert (dofs > 3).all()
    unequal = equal * np.geomspace(1e-4, 1e4, 40)
    pooled, dofs = moderated_variances(unequal.tolist(), [3.0] * 40)
    assert np.ptp(np.log(pooled)) > 0.5 * np.ptp(np.log(unequal))
    assert (dofs < 10).all()


def test_a_single_fit_keeps_its_noise() -> None:
    pooled, dofs = moderated_variances([0.5], [3.0])
    assert pooled.tolist() == [0.5]
    assert dofs.tolist() == [3.0]


@pytest.mark.slow
def test_intervals_cover_the_slope() -> None:
    rng = np.random.default_rng(2)
    hits = []
    for _ in range(400):
        x = np.linspace(0, 3, 6)
        errors = rng.uniform(0.05, 0.3, 6)
        values = 1 - 0.5 * x + 0.15 * rng.standard_t(5, 6) / np.sqrt(5 / 3) + errors * rng.standard_normal(6)
        slope = mixed_regression(np.stack([np.ones(6), x], 1), values, errors**2).coefficient(1)
        hits.append(slope.low <= -0.5 <= slope.high)
    # the standard error of 0.95 of 400 is 0.011
    assert 0.917 <= np.mean(hits) <= 0.983
