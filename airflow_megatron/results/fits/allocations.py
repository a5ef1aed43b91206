"""The best size for a compute budget by Chinchilla's approaches 1 and 2 (arXiv:2203.15556, section 3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_megatron.results.fits.intervals import LinearFit
from airflow_megatron.results.fits.optima import Cell, Optimum, find_optima
from airflow_megatron.results.fits.optimum_laws import OptimumLaw, fit_optimum_law
from airflow_megatron.results.fits.refusals import FitRefusedError
from airflow_megatron.results.fits.sweep_runs import groups_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.results.fits.intervals import Array

_BUDGETS: Final = 12
"""Compute budgets between the least and the greatest that approach 1 looks at."""
_SAME_BUDGET: Final = 0.1


def approach_1(sizes: Sequence[float], tokens: Sequence[float], losses: Sequence[float]) -> OptimumLaw:
    """Fit the best N against C to the lowest of the sizes' losses at each budget.

    The loss of a size between its token budgets is interpolated (log loss, quadratic in log tokens). The interval
    is the
    jackknife's over sizes.

    :raises FitRefusedError: if there are too few sizes or budgets
    """
    n, d, y = (np.log(np.array(each, float)) for each in (sizes, tokens, losses))
    every = sorted(set(n.tolist()))
    if len(every) < 4:
        raise FitRefusedError(
            f"{len(every)} sizes are too few for approach 1: it needs 4, each with 3 token budgets"
        )
    curves = {}
    for size in every:
        of_size = n == size
        if of_size.sum() >= 3 and np.ptp(d[of_size]) > 0:
            curves[size] = d[of_size], y[of_size]
    if len(curves) < 4:
        raise FitRefusedError(
            f"{len(curves)} sizes have 3 token budgets: approach 1 needs 4 of them; add cooldowns from their trunks"
        )
    slope, intercept, centre = _envelope(curves)
    dropped = []
    for size in curves:
        try:
            dropped.append(_envelope({other: curve for other, curve in curves.items() if other != size})[:2])
        except FitRefusedError:
            continue
    if len(dropped) < 3:
        raise FitRefusedError(
            "the budgets at which approach 1 finds a best size hang on single sizes: train more sizes"
        )
    spread = np.array(dropped) - np.array([slope, intercept])
    covariance = (len(dropped) - 1) / len(dropped) * (spread.T @ spread)
    fit = LinearFit(np.array([intercept, slope]), covariance[::-1, ::-1], len(dropped) - 2, 0.0)
    return OptimumLaw(("C",), fit, (centre,))


def _envelope(curves: dict[float, tuple[Array, Array]]) -> tuple[float, float, float]:
    lowest = [math.log(6) + size + float(d.min()) for size, (d, _) in curves.items()]
    highest = [math.log(6) + size + float(d.max()) for size, (d, _) in curves.items()]
    best = []
    for budget in np.linspace(min(lowest), max(highest), _BUDGETS):
        found = []
        for size, (d, y) in curves.items():
            at = budget - math.log(6) - size
            if d.min() <= at <= d.max():
                found.append((float(np.polyval(np.polyfit(d - d.mean(), y, 2), at - d.mean())), size))
        found.sort()
        inner = sorted(size for _, size in found)
        if len(found) >= 3 and found[0][1] not in (inner[0], inner[-1]):
            best.append((float(budget), found[0][1]))
    if len({size for _, size in best}) < 2:
        raise FitRefusedError(
            "at no two budgets a size between the smallest and the largest is best: train sizes on both sides of "
            "the optimum"
        )
    budgets, sizes = np.array(best).T
    centre = float(budgets.mean())
    slope, intercept = np.polyfit(budgets - centre, sizes, 1)
    return float(slope), float(intercept), centre


def isoflops(
    sizes: Sequence[float], tokens: Sequence[float], losses: Sequence[float]
) -> dict[float, tuple[Cell, Optimum | FitRefusedError]]:
    """Return for each compute budget, C = 6 N D, with three sizes or more its runs and best N, or why there is none."""
    budgets = [6 * n * d for n, d in zip(sizes, tokens, strict=True)]
    groups = groups_of(budgets, same=_SAME_BUDGET)
    members: dict[float, list[int]] = {}
    for index, budget in enumerate(budgets):
        members.setdefault(groups[budget], []).append(index)
    cells = {
        budget: Cell({"N": [sizes[i] for i in indices]}, [losses[i] for i in indices])
        for budget, indices in members.items()
        if len(indices) >= 3
    }
    found = find_optima({f"{budget:.6e}": cell for budget, cell in cells.items()})
    return {budget: (cell, found[f"{budget:.6e}"]) for budget, cell in cells.items()}


def approach_2(sizes: Sequence[float], tokens: Sequence[float], losses: Sequence[float]) -> OptimumLaw:
    """Fit the best N against C to the vertices of parabolas through the losses at equal compute.

    :raises FitRefusedError: if there are fewer than 3 budgets with an optimum among their sizes
    """
    found = isoflops(sizes, tokens, losses)
    if not found:
        raise FitRefusedError(
            "no runs have the same compute: approach 2 needs several sizes at each of 3 budgets; fit the law in N "
            "and D"
        )
    optima = {budget: each for budget, (_, each) in found.items() if isinstance(each, Optimum)}
    if len(optima) < 3:
        why = next((f": {each}" for _, each in found.values() if isinstance(each, FitRefusedError)), "")
        raise FitRefusedError(f"{len(optima)} compute budgets have a best size, a law needs 3{why}")
    return fit_optimum_law(
        {"C": list(optima)},
        [each.settings["N"].value for each in optima.values()],
        [each.log_errors["N"] for each in optima.values()],
    )
