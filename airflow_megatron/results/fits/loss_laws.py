"""Power laws of the loss: ``L = E + Σ A_j x_j^-α_j`` for one variable (N, D or C) or for N and D together."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import optimize

from airflow_megatron.results.fits.intervals import Estimate
from airflow_megatron.results.fits.refusals import FitRefusedError
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from airflow_megatron.results.fits.intervals import Array

_EXPONENTS: Final = (0.01, 2.0)
_GRID: Final = {1: 60, 2: 16}
"""Starting values of each exponent, by the number of terms."""
_HUBER: Final = 1.345
"""Standard deviations beyond which residuals count linearly: 95 % efficiency under a normal distribution."""
CHINCHILLA_DELTA: Final = 1e-3
"""Width of the Huber loss in Hoffmann et al. 2022, arXiv:2203.15556, section D.2."""
_LEVERAGE_POWER: Final = 0.85
"""Exponent between HC2 (1/2) and HC3 (1): on the sweeps of benchmarks/fits.py, nominal 95 % intervals cover 93-95 %
with HC2 and 96-98 % with HC3."""
_LEAST_REST: Final = 0.05
"""Minimum part of a residual that remains after a trunk's own influence on the law, as with single runs."""
_FEWEST_TRUNKS: Final = 3
_LOWEST_SPREAD: Final = 3.0
"""Minimum ratio of the largest to the smallest value of a variable for the fit of an exponent."""
_COLLINEAR: Final = 0.99


@dataclass(frozen=True)
class LossLaw:
    """A fitted law; its inner parameters are ln E, ln A_j (at the centre of ln x_j) and α_j.

    :param variables: names of x_j
    :param parameters: ``(1 + 2 k,)``
    :param covariance: ``(1 + 2 k, 1 + 2 k)``, of the parameters
    :param dof: degrees of freedom of the intervals
    :param centres: of ln x_j
    :param scatter: standard deviation of the log residuals, robust
    :param largest: largest fitted value of each variable
    """

    variables: tuple[str, ...]
    parameters: Array
    covariance: Array
    dof: float
    centres: Array
    scatter: float
    largest: Mapping[str, float]

    @property
    def floor(self) -> Estimate:
        """E: the irreducible loss, nats per token."""
        return self._of(lambda p: p[0]).exp()

    def exponent(self, variable: str) -> Estimate:
        """Return α of a variable."""
        index = self._index(variable)
        return self._of(lambda p: p[1 + len(self.variables) + index])

    def coefficient(self, variable: str) -> Estimate:
        """Return A of a variable, nats per token at x = 1."""
        index = self._index(variable)
        return self._of(
            lambda p: p[1 + index] + p[1 + len(self.variables) + index] * self.centres[index]
        ).exp()

    def loss(self, **at: float) -> Estimate:
        """Predict the law's loss, nats per token.

        :param at: a value for each variable
        """
        logs = np.log([at[name] for name in self.variables])[None]
        return self._of(lambda p: float(np.log(_model(p, logs - self.centres))[0])).exp()

    def allocation_exponent(self, variable: str) -> Estimate:
        """Return the exponent of the best N (or D) for a compute budget C = 6 N D: ``β/(α+β)``, ``α/(α+β)``.

        Hoffmann et al. 2022, arXiv:2203.15556, equation 4.
        """
        index = self._index(variable)
        return self._of(lambda p: p[4 - index] / (p[3] + p[4]))

    def allocation(self, variable: str, operations: float) -> Estimate:
        """Return the best N (or D) for a compute budget in floating point operations, C = 6 N D."""
        index = self._index(variable)

        def log_best(p: Array) -> float:
            alpha, beta = p[3], p[4]
            log_ratio = (
                math.log(alpha / beta) + p[1] + alpha * self.centres[0] - p[2] - beta * self.centres[1]
            )
            share = (beta if index == 0 else alpha) / (alpha + beta)
            sign = 1 if index == 0 else -1
            return float(sign * log_ratio / (alpha + beta) + share * math.log(operations / 6))

        return self._of(log_best).exp()

    def _index(self, variable: str) -> int:
        return self.variables.index(variable)

    def _of(self, function: Callable[[Any], float]) -> Estimate:
        """Return a function of the parameters, with the delta method's interval."""
        value = float(function(self.parameters))
        steps = 1e-5 * np.maximum(1e-3, np.abs(self.parameters))
        gradient = np.array(
            [
                (function(self.parameters + step) - function(self.parameters - step)) / (2 * size)
                for size, step in zip(steps, np.diag(steps), strict=True)
            ]
        )
        return Estimate.of(value, math.sqrt(max(0.0, float(gradient @ self.covariance @ gradient))), self.dof)


def fit_loss_law(
    variables: Mapping[str, Sequence[float]],
    losses: Sequence[float],
    *,
    delta: float | None = None,
    trunks: Sequence[Hashable] | None = None,
) -> LossLaw:
    """Fit a law to final losses.

    The starting point is the best of a grid of exponents; for each of them, E and A_j are the solution of a
    non-negative least squares problem (variable projection, Golub and Pereyra 1973, doi:10.1137/0710036). From there
    all parameters are fitted to the log losses with Huber's loss, whose width is 1.345 robust standard deviations; the
    covariance is a sandwich estimate, which is valid for heavy tails and unequal noise.

    :param variables: name → its value in each run; the two of a law in N and D in this order
    :param losses: nats per token
    :param delta: width of the Huber loss instead of that (``1e-3`` is Chinchilla's approach 3)
    :param trunks: trunk of each run, from which it was cooled down; None for runs without shared trunks. All cooldowns
        of a trunk share its noise, so trunks instead of runs are left out in turn. One or two trunks do not determine
        how trunks differ; their runs are assumed to be independent
    :raises FitRefusedError: if the runs do not determine the law
    """
    logs = np.log(np.array(list(variables.values()), float)).T
    values = np.log(np.array(losses, float))
    names = tuple(variables)
    _check_design(names, logs)
    k = len(names)
    centres = logs.mean(0)
    centred = logs - centres
    start = _projected(centred, np.exp(values))
    bounds = (
        [-5.0, *[-20.0] * k, *[_EXPONENTS[0]] * k],
        [3.0, *[5.0] * k, *[_EXPONENTS[1]] * k],
    )

    def residuals(p: Array) -> Array:
        return np.asarray(np.log(_model(p, centred)) - values)

    def solve(p: Array, **options: Any) -> Array:
        inside = np.clip(p, np.array(bounds[0]) + 1e-6, np.array(bounds[1]) - 1e-6)
        solved = optimize.least_squares(
            residuals,
            inside,
            jac=lambda q: _jacobian(q, centred),
            bounds=bounds,
            x_scale="jac",
            xtol=1e-12,
            ftol=1e-12,
            gtol=1e-12,
            max_nfev=400,
            **options,
        )
        return np.asarray(solved.x)

    n, m = len(values), 1 + 2 * k
    p = solve(start)
    width = delta or 0.0
    for _ in range(3 if delta is None else 1):
        if delta is None:
            rest = residuals(p)
            spread = 1.4826 * float(np.median(np.abs(rest - np.median(rest)))) * math.sqrt(n / (n - m))
            width = _HUBER * max(spread, 1e-9)
        p = solve(p, loss="huber", f_scale=width)
    _check_solution(names, p, bounds)
    rest = residuals(p)
    jacobian = _jacobian(p, centred)
    near = (np.abs(rest) < width).astype(float)
    if near.sum() <= m:
        near = np.ones(n)
    bread = np.linalg.pinv(jacobian.T @ (jacobian * near[:, None]), hermitian=True)
    leverage = np.clip(np.einsum("ij,jk,ik->i", jacobian, bread, jacobian) * near, 0, 0.95)
    scores = np.clip(rest, -width, width) / (1 - leverage) ** _LEVERAGE_POWER
    covariance, dof = bread @ ((jacobian.T * scores**2) @ jacobian) @ bread, float(n - m)
    if trunks is not None and _FEWEST_TRUNKS <= len(set(trunks)) < n:
        shared = _between_trunks(jacobian, near, bread, np.clip(rest, -width, width), trunks)
        covariance, dof = shared, float(len(set(trunks)) - 1)
    scatter = 1.4826 * float(np.median(np.abs(rest)))
    largest = {name: float(np.exp(logs[:, index].max())) for index, name in enumerate(names)}
    law = LossLaw(names, p, covariance, dof, centres, scatter, largest)
    _check_determined(law)
    return law


def _between_trunks(
    jacobian: Array, near: Array, bread: Array, scores: Array, trunks: Sequence[Hashable]
) -> Array:
    """Return the covariance of the parameters by the jackknife over trunks, linearised.

    CR3 of Bell and McCaffrey 2002: "Bias reduction in standard errors for linear regression with multi-stage samples".
    """
    members: dict[Hashable, list[int]] = {}
    for index, trunk in enumerate(trunks):
        members.setdefault(trunk, []).append(index)
    meat = np.zeros_like(bread)
    for indices in members.values():
        rows = jacobian[indices] * np.sqrt(near[indices])[:, None]
        values, vectors = np.linalg.eigh(np.eye(len(indices)) - rows @ bread @ rows.T)
        left_out = vectors @ ((vectors.T @ scores[indices]) / np.maximum(values, _LEAST_REST))
        score = jacobian[indices].T @ left_out
        meat += np.outer(score, score)
    count = len(members)
    return np.asarray((count - 1) / count * (bread @ meat @ bread))


def _model(p: Array, centred: Array) -> Array:
    k = centred.shape[1]
    return np.asarray(np.exp(p[0]) + np.exp(p[1 : 1 + k] - p[1 + k :] * centred).sum(1))


def _jacobian(p: Array, centred: Array) -> Array:
    k = centred.shape[1]
    terms = np.exp(p[1 : 1 + k] - p[1 + k :] * centred)
    columns = np.concatenate([np.full((len(centred), 1), np.exp(p[0])), terms, -centred * terms], axis=1)
    return np.asarray(columns / _model(p, centred)[:, None])


def _projected(centred: Array, losses: Array) -> Array:
    k = centred.shape[1]
    exponents = np.geomspace(0.03, 1.5, _GRID[k])
    best: tuple[float, Array, tuple[float, ...]] | None = None
    for chosen in itertools.product(exponents, repeat=k):
        terms = np.exp(-np.array(chosen) * centred)
        design = np.concatenate([np.ones((len(losses), 1)), terms], axis=1) / losses[:, None]
        solution, rest = optimize.nnls(design, np.ones(len(losses)))
        if best is None or rest < best[0]:
            best = rest, solution, chosen
    assert best is not None
    return np.concatenate([np.log(np.maximum(best[1], 1e-3)), best[2]])


def _check_design(names: Sequence[str], logs: Array) -> None:
    k = len(names)
    needed = 1 + 2 * k + 2
    for index, name in enumerate(names):
        values = {round(float(each), 3) for each in logs[:, index]}
        if len(values) == 1:
            raise FitRefusedError(
                f"all runs have the same {name}: a law in it needs at least 3 values, over a factor of "
                f"{_LOWEST_SPREAD:g}"
            )
        if len(values) < 3:
            raise FitRefusedError(
                f"the runs have {counted(len(values), 'value')} of {name}: a law in it needs 3, "
                f"over a factor of {_LOWEST_SPREAD:g}"
            )
        if (spread := math.exp(float(np.ptp(logs[:, index])))) < _LOWEST_SPREAD:
            raise FitRefusedError(
                f"{name} varies by a factor of {spread:.2g} only: an exponent needs {_LOWEST_SPREAD:g} at least"
            )
    if k == 2 and collinear(logs):
        raise FitRefusedError(
            f"{names[0]} and {names[1]} grow together (the same {names[1]}/{names[0]} in all runs): their "
            f"exponents cannot "
            f"be separated; train sizes on several token budgets, for example by cooldowns from one trunk"
        )
    if len(logs) < needed:
        raise FitRefusedError(
            f"{counted(len(logs), 'loss is', 'losses are')} too few: a law in {' and '.join(names)} "
            f"has {1 + 2 * k} parameters and needs "
            f"{needed}"
        )


def collinear(logs: Array) -> bool:
    """Return whether two variables, ``(n, 2)`` logarithms, grow together."""
    correlations: Array = np.corrcoef(logs.T)
    return abs(float(correlations[0, 1])) > _COLLINEAR


def _check_solution(names: Sequence[str], p: Array, bounds: tuple[list[float], list[float]]) -> None:
    k = len(names)
    for index, name in enumerate(names):
        exponent, size = p[1 + k + index], p[1 + index]
        if (
            exponent < bounds[0][1 + k + index] * 1.5
            or exponent > bounds[1][1 + k + index] * 0.98
            or size < -12
        ):
            raise FitRefusedError(
                f"the losses do not follow a power law in {name}: its exponent goes to {exponent:.2g}; "
                f"check that larger {name} has a lower loss, and leave out runs with another data set or schedule"
            )


def _check_determined(law: LossLaw) -> None:
    for name in law.variables:
        exponent = law.exponent(name)
        if exponent.low <= 0:
            raise FitRefusedError(
                f"the runs do not determine the exponent of {name}: {exponent.value:.2g}, interval "
                f"{exponent.low:.2g} to "
                f"{exponent.high:.2g}; train a wider range of {name}, or more runs"
            )
