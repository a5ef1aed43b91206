"""Synthetic sweeps whose noise violates the fit's model: heavy tails, unequal variances, missing or diverged runs."""

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


def trunk_sweep(rng: np.random.Generator, surface: Surface) -> tuple[Array, Array, Array]:
    """Return N, D and loss of 4 to 7 trunks, one of each size, with 4 to 6 cooldowns.

    0.3 to 0.8 of the variance is the trunk's, the rest each cooldown's; both have t distributions with 3 degrees of
    freedom, together a standard deviation of 0.1 to 0.4 %.
    """
    n, d, _ = loss_sweep(rng, surface)
    return n, d, surface.loss(n, d) * _trunk_noise(rng, n)


def trunk_isoflop_sweep(rng: np.random.Generator, surface: Surface) -> tuple[Array, Array, Array]:
    """Return N, D and loss of 4 to 6 compute budgets × the sizes within a factor of 4.5 of the best.

    Each size is one trunk with a cooldown for each of its budgets; neighbouring sizes differ by a factor of 1.4 to 2.
    The noise is that of :func:`trunk_sweep`.
    """
    budgets = np.geomspace(1e19, 1e21, rng.integers(4, 7))
    low, high = surface.best_size(budgets[0]) / 4, surface.best_size(budgets[-1]) * 4
    step = rng.uniform(1.4, 2.0)
    sizes = (
        low * step ** np.arange(int(np.log(high / low) / np.log(step)) + 1) * np.exp(rng.uniform(-0.3, 0.3))
    )
    near = [sizes[np.abs(np.log(sizes / surface.best_size(budget))) <= np.log(4.5)] for budget in budgets]
    n = np.concatenate(near)
    d = np.repeat(budgets, [len(each) for each in near]) / 6 / n
    return n, d, surface.loss(n, d) * _trunk_noise(rng, n)


def _trunk_noise(rng: np.random.Generator, n: Array) -> Array:
    share, scale = rng.uniform(0.3, 0.8), rng.uniform(0.001, 0.004) / np.sqrt(3)
    of_trunk = {size: rng.standard_t(3) for size in sorted(set(n.tolist()))}
    noise = np.sqrt(share) * np.array([of_trunk[size] for size in n.tolist()])
    noise += np.sqrt(1 - share) * rng.standard_t(3, len(n))
    return np.exp(scale * noise)


def isoflop_sweep(rng: np.random.Generator, surface: Surface) -> tuple[Array, Array, Array]:
    """Return N, D and loss of 4 to 6 compute budgets × 7 sizes within a factor of 4 of the best."""
    n_all, d_all = [], []
    for budget in np.geomspace(1e19, 1e21, rng.integers(4, 7)):
        sizes = surface.best_size(budget) * np.geomspace(1 / 4, 4, 7) * np.exp(rng.uniform(-0.3, 0.3))
        n_all.append(sizes)
        d_all.append(budget / 6 / sizes)
    n, d = np.concatenate(n_all), np.concatenate(d_all)
    noise = rng.uniform(0.0005, 0.003) * rng.standard_t(3, len(n)) / np.sqrt(3)
    return n, d, surface.loss(n, d) * np.exp(noise)


@dataclass(frozen=True)
class GridSweep:
    """A small grid of learning rates × batches at several sizes.

    :param cells: size → its runs
    :param sizes: size → N
    :param optima: size → setting → true optimum
    :param exponents: setting → exponent of its optimum in N
    """

    cells: dict[str, Cell]
    sizes: dict[str, float]
    optima: dict[str, dict[str, float]]
    exponents: dict[str, float]


def grid_sweep(rng: np.random.Generator) -> GridSweep:
    """Return 3 to 6 sizes × 4 to 6 learning rates × 4 or 5 batches, correlated valleys, noise as of ``rate_sweep``."""
    exponents = {"lr": rng.uniform(-0.9, -0.2), "batch": rng.uniform(0.2, 0.6)}
    bends = rng.uniform(0.006, 0.02), rng.uniform(0.004, 0.015)
    across = rng.uniform(-0.8, 0) * np.sqrt(bends[0] * bends[1])
    noise, unequal, skew = rng.uniform(0.0005, 0.003), rng.uniform(0, 0.4), rng.normal(0.25, 0.15)
    counts, steps = (rng.integers(4, 7), rng.integers(4, 6)), (rng.uniform(1.5, 2.5), 2.0)
    cells, sizes, optima = {}, {}, {}
    for n in np.geomspace(3e7, 2e9, rng.integers(3, 7)):
        best = [
            np.log(reference) + exponent * np.log(n / 3e8)
            for reference, exponent in zip((3e-3, 3e5), exponents.values(), strict=True)
        ]
        axes = [
            rng.uniform(-0.5, 0.5) * np.log(step) * (count / 2 - 1)
            + (np.arange(count) - (count - 1) / 2) * np.log(step)
            for count, step in zip(counts, steps, strict=True)
        ]
        x, y = (each.ravel() for each in np.meshgrid(*axes))
        losses = np.log(2.5 + (n / 3e8) ** -0.3) + bends[0] * x**2 * (1 + np.tanh(skew * x))
        losses += bends[1] * y**2 + across * x * y
        losses += noise * (n / 3e8) ** -unequal * rng.standard_t(3, len(x)) / np.sqrt(3)
        kept = rng.random(len(x)) > rng.uniform(0, 0.15)
        if rng.random() < 0.25:
            kept &= x < 3 * np.log(steps[0])
        name = f"{n:.0f}"
        runs = {"lr": np.exp(best[0] + x[kept]).tolist(), "batch": np.exp(best[1] + y[kept]).tolist()}
        cells[name], sizes[name] = Cell(runs, np.exp(losses[kept]).tolist()), float(n)
        optima[name] = {"lr": float(np.exp(best[0])), "batch": float(np.exp(best[1]))}
    return GridSweep(cells, sizes, optima, exponents)


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
