"""The best size for a compute budget by Chinchilla's approaches 1 and 2 (arXiv:2203.15556, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.linalg import block_diag

from airflow_megatron.results.fits.intervals import LinearFit, moderated_variances
from airflow_megatron.results.fits.optima import Cell, Optimum, find_optima
from airflow_megatron.results.fits.optimum_laws import OptimumLaw, fit_optimum_law
from airflow_megatron.results.fits.refusals import FitRefusedError
from airflow_megatron.results.fits.sweep_runs import groups_of
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from airflow_megatron.results.fits.intervals import Array

_SAME_BUDGET: Final = 0.1
_REAL: Final = 1e-9
"""Maximum imaginary part of a root that counts as real."""
_LEAST_VARIANCE: Final = 1e-12
"""Minimum variance of ln C, for losses without noise."""
_ORDER: Final = 3
"""Coefficients of a size's curve: ln loss is quadratic in C^-:data:`_POWER`."""
_POWER: Final = 0.3
"""Close to the exponents of D in published laws of the loss, 0.28 to 0.37; a quadratic in ln C has too little
curvature."""


@dataclass(frozen=True)
class _Curve:
    """The loss of one size at its compute budgets, C = 6 N D, between which it is interpolated.

    :param size: ln N
    :param budgets: ln C
    :param centre: of the budgets
    :param polynomial: of ln loss in exp(-0.3 (ln C - ``centre``)), the highest power first
    :param inverse: of its normal matrix
    :param residual: sum of the squared residuals
    """

    size: float
    budgets: Array
    centre: float
    polynomial: Array
    inverse: Array
    residual: float

    @classmethod
    def of(cls, size: float, tokens: Array, losses: Array) -> _Curve:
        budgets = math.log(6) + size + tokens
        centre = float(budgets.mean())
        design = np.vander(_bent(budgets - centre), _ORDER)
        polynomial = np.linalg.lstsq(design, losses, rcond=None)[0]
        residual = float(((losses - design @ polynomial) ** 2).sum())
        return cls(size, budgets, centre, polynomial, np.linalg.inv(design.T @ design), residual)

    @property
    def dof(self) -> int:
        """Degrees of freedom of the residuals."""
        return len(self.budgets) - _ORDER

    def from_budget(self, budget: float) -> np.poly1d:
        """Return ln loss in exp(-0.3 (ln C - ``budget``))."""
        return np.poly1d(np.poly1d(self.polynomial)(np.poly1d([_bent(budget - self.centre), 0])))

    def row(self, budget: float) -> Array:
        """Return the row of the design at a budget."""
        return np.vander([_bent(budget - self.centre)], _ORDER).ravel()


def _bent(budget: Any) -> Any:
    return np.exp(-_POWER * budget)


def approach_1(
    sizes: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    trunks: Sequence[Hashable] | None = None,
) -> OptimumLaw:
    """Fit the best N against C to the budgets at which the lowest loss changes from one size to the next.

    At such a budget the two sizes have the same loss, so the best size is their geometric mean, because ln loss is
    nearly a parabola in ln N at equal compute. The loss of a size between its token budgets is interpolated. The
    interval follows from the noise around these curves, whose variances are moderated by those of the other sizes. If
    losses share trunks, it follows from the scatter of the budgets around the law.

    :param trunks: trunk of each loss, from which it was cooled down; None for runs without shared trunks
    :raises FitRefusedError: if there are too few sizes or budgets
    """
    n, d, y = (np.log(np.array(each, float)) for each in (sizes, tokens, losses))
    every = sorted(set(n.tolist()))
    if len(every) < 4:
        raise FitRefusedError(
            f"{counted(len(every), 'size is', 'sizes are')} too few for approach 1: it needs 4, "
            "each with 3 token budgets"
        )
    curves = [
        _Curve.of(size, d[n == size], y[n == size]) for size in every if len(set(d[n == size])) >= _ORDER
    ]
    if len(curves) < 4:
        raise FitRefusedError(
            f"{counted(len(curves), 'size has', 'sizes have')} 3 token budgets: approach 1 needs 4 "
            "of them; add cooldowns from their trunks"
        )
    if sum(curve.dof for curve in curves) < 2:
        raise FitRefusedError(
            "no size has more than 3 token budgets: approach 1 cannot tell noise; add cooldowns from their trunks"
        )
    passes = [found for index in range(len(curves) - 1) if (found := _pass(curves, index)) is not None]
    if len(passes) < 3:
        raise FitRefusedError(
            f"the lowest loss passes from a size to the next at {counted(len(passes), 'budget')}: "
            "approach 1 needs 3; train sizes "
            f"on both sides of the optimum at the same budgets"
        )
    best, budgets, gradients = (np.array(each) for each in zip(*passes, strict=True))
    variances, dof = _noise(curves)
    noise = block_diag(*(each * curve.inverse for each, curve in zip(variances, curves, strict=True)))
    covariance = gradients @ noise @ gradients.T
    # the sizes are exact, the budgets are not: fit ln C against ln N, and invert the law
    weights = 1 / np.maximum(np.diag(covariance), _LEAST_VARIANCE)
    shared = trunks is not None and len(set(trunks)) < len(trunks)
    if shared:
        weights = np.ones_like(best)
    middle = float(np.average(best, weights=weights))
    design = np.stack([np.ones_like(best), best - middle], axis=1)
    solve = np.linalg.inv(design.T @ (weights[:, None] * design)) @ (design.T * weights)
    centre, slope = (float(each) for each in solve @ budgets)
    if slope <= 0:
        raise FitRefusedError(
            "larger sizes are best at smaller budgets: the losses are too noisy for approach 1"
        )
    if shared:
        # the noise of a trunk shifts all losses of its size; only the scatter of the budgets around the law shows it
        dof = len(best) - 2
        rest = budgets - design @ [centre, slope]
        covariance = float(rest @ rest) / dof * np.eye(len(best))
    turned = np.diag([-1 / slope, -1 / slope**2]) @ solve
    fit = LinearFit(np.array([middle, 1 / slope]), turned @ covariance @ turned.T, dof, 0.0)
    return OptimumLaw(("C",), fit, (centre,))


def _pass(curves: Sequence[_Curve], index: int) -> tuple[float, float, Array] | None:
    """Return the budget at which the lowest loss changes from one size to the next, None unless there is one.

    :returns: ln of the best size there, ln C, and the gradient of ln C by the coefficients of all curves
    """
    small, large = curves[index : index + 2]
    low = max(small.budgets.min(), large.budgets.min())
    high = min(small.budgets.max(), large.budgets.max())
    if low >= high:
        return None
    difference = small.from_budget(low) - large.from_budget(low)
    falls = difference.deriv()
    least = _bent(high - low)
    found = [
        float(root.real)
        for root in np.atleast_1d(difference.roots)
        if abs(root.imag) < _REAL and least <= root.real <= 1 and falls(root.real) < 0
    ]
    if len(found) != 1:
        return None
    budget = low - math.log(found[0]) / _POWER
    slope = -_POWER * found[0] * float(falls(found[0]))
    gradient = np.zeros((len(curves), _ORDER))
    gradient[index] = -small.row(budget) / slope
    gradient[index + 1] = large.row(budget) / slope
    return (small.size + large.size) / 2, budget, gradient.ravel()


def _noise(curves: Sequence[_Curve]) -> tuple[Array, float]:
    """Return the variance of ln loss at each size, and their degrees of freedom."""
    dofs = np.array([curve.dof for curve in curves], float)
    residuals = np.array([curve.residual for curve in curves])
    measured = dofs > 0
    moderated, moderated_dofs = moderated_variances(
        (residuals / np.maximum(dofs, 1))[measured].tolist(), dofs[measured].tolist()
    )
    variances = np.full(len(curves), residuals.sum() / dofs.sum())
    variances[measured] = moderated
    return variances, float(moderated_dofs.mean())


def isoflops(
    sizes: Sequence[float], tokens: Sequence[float], losses: Sequence[float]
) -> dict[float, tuple[Cell, Optimum | FitRefusedError]]:
    """Return the runs and the best N, or why there is none, of each compute budget C = 6 N D with at least three
    sizes.
    """
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
