from __future__ import annotations

import numpy as np
import pytest

from airflow_megatron.results.fits.optimum_laws import OptimumLaw, fit_optimum_law
from airflow_megatron.results.fits.refusals import FitRefusedError

STEPLAW = [
    (2.147e08, 4e09, 0.002127, 0.105, 1.831e05, 0.101),
    (2.147e08, 1.14e10, 0.002555, 0.088, 3.067e05, 0.088),
    (2.147e08, 2e10, 0.003077, 0.124, 4.905e05, 0.101),
    (2.147e08, 1e11, 0.00388, 0.145, 1.361e06, 0.155),
    (2.683e08, 5e09, 0.00183, 0.106, 1.872e05, 0.121),
    (2.683e08, 1.42e10, 0.002378, 0.105, 3.204e05, 0.063),
    (2.683e08, 2.5e10, 0.003017, 0.123, 5.652e05, 0.085),
    (2.683e08, 8e10, 0.003372, 0.153, 1.073e06, 0.115),
    (4.293e08, 8e09, 0.001158, 0.087, 1.874e05, 0.101),
    (4.293e08, 2.27e10, 0.001839, 0.136, 4.231e05, 0.032),
    (4.293e08, 4e10, 0.002076, 0.104, 6.094e05, 0.031),
    (4.293e08, 5e10, 0.002108, 0.155, 6.435e05, 0.046),
    (5.369e08, 1e10, 0.001176, 0.085, 2.383e05, 0.061),
    (5.369e08, 2.84e10, 0.001647, 0.122, 4.284e05, 0.032),
    (5.369e08, 5e10, 0.001872, 0.122, 6.372e05, 0.051),
    (1.074e09, 2e10, 0.0009375, 0.085, 3.327e05, 0.064),
    (1.074e09, 5.69e10, 0.001198, 0.135, 5.87e05, 0.070),
]
"""N, D, best learning rate, standard error of its logarithm, best batch in tokens, the same.

Of the 17 cells of dense_lr_bs_loss.csv of github.com/step-law/steplaw, by `find_optima`."""


def test_a_law_without_noise_is_recovered() -> None:
    n, d = np.array([1e8, 1e8, 1e9, 1e9, 4e9]), np.array([2e9, 2e10, 2e10, 1e11, 1e11])
    optima = 1.79 * n**-0.713 * d**0.307
    law = fit_optimum_law({"N": n.tolist(), "D": d.tolist()}, optima.tolist(), [0.1] * 5)
    assert law.exponent("N").value == pytest.approx(-0.713)
    assert law.exponent("D").value == pytest.approx(0.307)
    assert law.coefficient.value == pytest.approx(1.79)
    assert law.at(N=1e10, D=1e12).value == pytest.approx(1.79 * 1e10**-0.713 * 1e12**0.307)


def steplaw(setting: int, *names: str) -> OptimumLaw:
    columns = {"N": [row[0] for row in STEPLAW], "D": [row[1] for row in STEPLAW]}
    return fit_optimum_law(
        {name: columns[name] for name in names},
        [row[setting] for row in STEPLAW],
        [row[setting + 1] for row in STEPLAW],
    )


def test_published_data_give_the_published_exponents() -> None:
    """arXiv:2503.04715: -0.713 and 0.571. Its 0.307 of the rate in D is just beyond: benchmarks/README.md."""
    rate = steplaw(2, "N", "D")
    assert rate.exponent("N").low <= -0.713 <= rate.exponent("N").high
    assert rate.exponent("D").value == pytest.approx(0.252, abs=0.002)
    batch = steplaw(4, "D").exponent("D")
    assert batch.low <= 0.571 <= batch.high
    for exponent in (rate.exponent("N"), rate.exponent("D"), batch):
        assert exponent.half_width <= 0.1


def refusal(n: list[float], d: list[float] | None = None) -> str:
    variables = {"N": n} if d is None else {"N": n, "D": d}
    with pytest.raises(FitRefusedError) as refused:
        fit_optimum_law(variables, [1e-3] * len(n), [0.1] * len(n))
    return str(refused.value)


def test_too_few_optima_are_refused() -> None:
    assert refusal([]).startswith("there is no optimum away from the edge: a power law in N needs 3 sizes")
    assert refusal([1e8]).startswith("there is 1 optimum away from the edge")
    assert refusal([1e8, 1e9], [1e9, 2e10]).startswith(
        "there are 2 optima away from the edge: a power law in N and D"
    )


def test_a_narrow_range_is_refused() -> None:
    assert refusal([1e8, 1.1e8, 1.3e8]) == "N varies by a factor of 1.3 only: an exponent needs 2 at least"


def test_variables_that_grow_together_are_refused() -> None:
    n = [1e8, 3e8, 1e9, 3e9]
    assert (
        refusal(n, [20 * each for each in n]) == "N and D grow together: their exponents cannot be separated"
    )
