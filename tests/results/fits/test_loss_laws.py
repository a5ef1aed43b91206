from __future__ import annotations

import numpy as np
import pytest
from synthetic_sweeps import Surface, loss_sweep, random_surface, trunk_sweep

from airflow_megatron.results.fits.loss_laws import CHINCHILLA_DELTA, fit_loss_law
from airflow_megatron.results.fits.refusals import FitRefusedError

CHINCHILLA = Surface(1.69, 406.4, 410.7, 0.34, 0.28)
SIZES = np.repeat(np.geomspace(5e7, 5e9, 5), 5)
TOKENS = SIZES * np.tile(np.geomspace(5, 200, 5), 5)


@pytest.mark.parametrize("delta", [None, CHINCHILLA_DELTA])
def test_a_surface_without_noise_is_recovered(delta: float | None) -> None:
    law = fit_loss_law({"N": SIZES, "D": TOKENS}, CHINCHILLA.loss(SIZES, TOKENS), delta=delta)
    assert law.floor.value == pytest.approx(1.69, rel=1e-4)
    assert law.exponent("N").value == pytest.approx(0.34, rel=1e-3)
    assert law.exponent("D").value == pytest.approx(0.28, rel=1e-3)
    assert law.coefficient("N").value == pytest.approx(406.4, rel=0.01)
    assert law.coefficient("D").value == pytest.approx(410.7, rel=0.01)
    assert law.allocation_exponent("N").value == pytest.approx(0.28 / 0.62, rel=1e-3)
    assert law.allocation_exponent("D").value == pytest.approx(0.34 / 0.62, rel=1e-3)
    assert law.allocation("N", 5.76e23).value == pytest.approx(CHINCHILLA.best_size(5.76e23), rel=0.01)
    assert law.allocation("N", 1e22).value * law.allocation("D", 1e22).value == pytest.approx(1e22 / 6)
    assert law.loss(N=7e10, D=1.4e12).value == pytest.approx(float(CHINCHILLA.loss(7e10, 1.4e12)), rel=1e-4)


def test_a_law_in_one_variable_without_noise_is_recovered() -> None:
    n = np.geomspace(1e7, 1e10, 8)
    law = fit_loss_law({"N": n}, 1.8 + 300 * n**-0.32)
    assert law.exponent("N").value == pytest.approx(0.32, rel=1e-3)
    assert law.floor.value == pytest.approx(1.8, rel=1e-4)
    assert law.loss(N=1e11).value == pytest.approx(1.8 + 300 * 1e11**-0.32, rel=1e-5)


def refusal(n: object, d: object, losses: object) -> str:
    with pytest.raises(FitRefusedError) as refused:
        fit_loss_law({"N": n, "D": d}, losses)  # type: ignore[dict-item, arg-type]
    return str(refused.value)


def test_one_size_is_refused() -> None:
    n = np.full(8, 1e8)
    d = np.geomspace(1e9, 1e11, 8)
    assert "all runs have the same N" in refusal(n, d, CHINCHILLA.loss(n, d))


def test_two_sizes_are_refused() -> None:
    n = np.tile([1e8, 1e9], 5)
    d = np.geomspace(1e9, 1e11, 10)
    assert "the runs have 2 values of N: a law in it needs 3" in refusal(n, d, CHINCHILLA.loss(n, d))


def test_a_narrow_range_is_refused() -> None:
    n = np.tile([1e8, 1.2e8, 1.5e8], 4)
    d = np.geomspace(1e9, 1e11, 12)
    assert "N varies by a factor of 1.5 only" in refusal(n, d, CHINCHILLA.loss(n, d))


def test_sizes_at_one_ratio_are_refused() -> None:
    n = np.geomspace(1e8, 1e10, 9)
    text = refusal(n, 20 * n, CHINCHILLA.loss(n, 20 * n))
    assert "N and D grow together" in text
    assert "cooldowns from one trunk" in text


def test_too_few_losses_are_refused() -> None:
    n = np.array([1e8, 1e9, 1e10, 1e8, 1e9])
    d = np.array([1e9, 1e10, 1e11, 1e11, 1e9])
    assert "5 losses are too few: a law in N and D has 5 parameters and needs 7" in refusal(
        n, d, CHINCHILLA.loss(n, d)
    )


def test_losses_that_rise_with_size_are_refused() -> None:
    losses = 2 + 0.1 * np.log(SIZES / 1e7) + 400 * TOKENS**-0.3
    assert "do not follow a power law in N" in refusal(SIZES, TOKENS, losses)


def test_noise_that_hides_the_exponent_is_refused() -> None:
    rng = np.random.default_rng(3)
    text = refusal(SIZES, TOKENS, 2.5 * np.exp(0.3 * rng.standard_normal(len(SIZES))))
    assert "do not" in text


@pytest.mark.slow
def test_intervals_cover_the_law() -> None:
    rng = np.random.default_rng(4)
    hits = []
    for _ in range(120):
        truth = random_surface(rng)
        n, d, losses = loss_sweep(rng, truth)
        try:
            law = fit_loss_law({"N": n, "D": d}, losses)
        except FitRefusedError:
            continue
        pairs = [
            (law.floor, truth.e),
            (law.exponent("N"), truth.alpha),
            (law.exponent("D"), truth.beta),
            (law.loss(N=2e10, D=4e11), float(truth.loss(2e10, 4e11))),
            (law.allocation_exponent("N"), truth.beta / (truth.alpha + truth.beta)),
            (law.allocation("N", 1e23), truth.best_size(1e23)),
        ]
        hits.append([each.low <= true <= each.high for each, true in pairs])
    # 0.95 of 120 has a standard error of 0.02: three of them below, for six quantities together
    assert len(hits) >= 0.95 * 120
    assert (np.mean(hits, axis=0) >= 0.89).all()


def test_trunks_of_one_run_each_change_nothing() -> None:
    n, d, losses = loss_sweep(np.random.default_rng(3), CHINCHILLA)
    plain = fit_loss_law({"N": n, "D": d}, losses)
    alone = fit_loss_law({"N": n, "D": d}, losses, trunks=range(len(n)))
    assert alone.exponent("N") == plain.exponent("N")


def test_one_trunk_says_nothing_of_how_trunks_differ() -> None:
    d = np.geomspace(1e9, 1e11, 8)
    losses = (1.8 + 1000 * d**-0.35) * np.exp(1e-4 * np.array([1, -1, 2, -2, 1, 0, -1, 1]))
    plain, one = (fit_loss_law({"D": d}, losses, trunks=trunks) for trunks in (None, [0] * 8))
    assert one.exponent("D") == plain.exponent("D")
    assert one.exponent("D").half_width > 0


@pytest.mark.slow
def test_intervals_hold_for_cooldowns_that_share_the_noise_of_their_trunk() -> None:
    rng, inside, taken_apart = np.random.default_rng(17), [], []
    for _ in range(30):
        truth = random_surface(rng)
        n, d, losses = trunk_sweep(rng, truth)
        for trunks, kept in ((n.tolist(), inside), (None, taken_apart)):
            try:
                floor = fit_loss_law({"N": n, "D": d}, losses, trunks=trunks).floor
            except FitRefusedError:
                continue
            kept.append(floor.low <= truth.e <= floor.high)
    assert len(inside) >= 26
    assert np.mean(inside) >= 0.86
    assert np.mean(taken_apart) < np.mean(inside)
