"""Synthetic sweeps whose noise is not the fitter's model: heavy tails, unequal variances, missing and diverged runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from airflow_megatron.results.fits.optima import Cell

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Surface:
    """``L = E + A N^-alpha + B D^-beta``."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, n: Array | float, d: Array | float) -> Array:
        return np.asarray(self.e + self.a * n**-self.alpha + self.b * d**-self.beta)

    def best_size(self, operations: float) -> float:
        g = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        return float(g * (operations / 6) ** (self.beta / (self.alpha + self.beta)))


def random_surface(rng: np.random.Generator) -> Surface:
    """Return a surface with exponents of 0.25 to 0.5 and terms of 0.2 to 0.6 nats at 300 M parameters, 10 G tokens."""
    alpha, beta = rng.uniform(0.25, 0.5, 2)
    return Surface(
        rng.uniform(1.4, 2.2),
        rng.uniform(0.2, 0.6) * 3e8**alpha,
        rng.uniform(0.2, 0.6) * 1e10**beta,
        alpha,
        beta,
    )


def loss_sweep(rng: np.random.Generator, surface: Surface) -> tuple[Array, Array, Array]:
    """Return N, D and loss of 4 to 7 sizes × 4 to 6 token budgets, up to a fifth of them missing.

    The noise has a t distribution with 3 degrees of freedom, a standard deviation of 0.1 to 0.4 %, more at small
    sizes.
    """
    sizes = np.geomspace(3e7, 2e9, rng.integers(4, 8))
    ratios = np.geomspace(5, 320, rng.integers(4, 7))
    n = np.repeat(sizes, len(ratios))
    d = n * np.tile(ratios, len(sizes))
    scale = rng.uniform(0.001, 0.004) * (n / 3e8) ** -rng.uniform(0, 0.4)
    losses = surface.loss(n, d) * np.exp(scale * rng.standard_t(3, len(n)) / np.sqrt(3))
    kept = rng.random(len(n)) > rng.uniform(0, 0.2)
    return n[kept], d[kept], losses[kept]


@dataclass(frozen=True)
class RateSweep:
    """A sweep of learning rates at several sizes.

    :param cells: size → its runs
    :param sizes: size → N
    :param optima: size → true optimum
    :param fittable: the sizes whose true optimum has a tested value on either side, and which have five runs
    :param exponent: of the optimum in N
    :param reference: the optimum at 300 M parameters
    """

    cells: dict[str, Cell]
    sizes: dict[str, float]
    optima: dict[str, float]
    fittable: frozenset[str]
    exponent: float
    reference: float = 3e-3

    def optimum(self, n: float) -> float:
        return float(self.reference * (n / 3e8) ** self.exponent)


def rate_sweep(rng: np.random.Generator) -> RateSweep:
    """Return 3 to 7 sizes × 6 to 9 learning rates.

    The loss rises faster above the optimum than below; the highest rates diverge in a quarter of the sizes, and up
    to 15 % of the
    others are missing. The noise has a t distribution with 3 degrees of freedom, a standard deviation of 0.05 to
    0.3 %, more at
    small sizes.
    """
    exponent = rng.uniform(-0.9, -0.2)
    bend, noise, step = rng.uniform(0.006, 0.02), rng.uniform(0.0005, 0.003), rng.uniform(1.5, 2.5)
    skew, unequal = rng.normal(0.25, 0.15), rng.uniform(0, 0.4)
    cells, sizes, optima, fittable = {}, {}, {}, set()
    for n in np.geomspace(3e7, 2e9, rng.integers(3, 8)):
        name = f"{n:.0f}"
        best = np.log(3e-3) + exponent * np.log(n / 3e8)
        count = rng.integers(6, 10)
        middle = best + rng.uniform(-1, 1) * np.log(step) * (count / 2 - 2)
        rates = middle + (np.arange(count) - (count - 1) / 2) * np.log(step)
        away = rates - best
        losses = np.log(2.5 + (n / 3e8) ** -0.3) + bend * away**2 * (1 + np.tanh(skew * away))
        losses += noise * (n / 3e8) ** -unequal * rng.standard_t(3, count) / np.sqrt(3)
        kept = rng.random(count) > rng.uniform(0, 0.15)
        if rng.random() < 0.25:
            kept &= away < 3 * np.log(step)
        rates, losses = rates[kept], losses[kept]
        sizes[name], optima[name] = float(n), float(np.exp(best))
        cells[name] = Cell({"lr": np.exp(rates).tolist()}, np.exp(losses).tolist())
        if len(rates) >= 5 and min(best - rates.min(), rates.max() - best) >= 0.9 * np.log(step):
            fittable.add(name)
    return RateSweep(cells, sizes, optima, frozenset(fittable), float(exponent))
