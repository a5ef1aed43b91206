"""The optimum of learning rate and batch at one size: weighted polynomials in their logarithms."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_megatron.results.fits.intervals import Estimate, moderated_variances, quantile
from airflow_megatron.results.fits.refusals import EdgeOptimumError, FitRefusedError
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.results.fits.intervals import Array

SMALLEST_SWEEP: Final = 5
"""Minimum number of values of the learning rate (or batch) for a fit, because a parabola has three coefficients."""
_DENSE: Final = 20
"""Minimum residual degrees of freedom for estimating the noise from each residual (HC3) instead of from all
together."""
_SKEWS: Final = {"lr": (0.25, 0.25)}
_SKEW: Final = (0.0, 0.3)
_FOURTH: Final = (0.0, 0.05)
"""Prior for the third and fourth order of a small sweep: mean and deviation of the coefficients relative to the
second's.

Losses rise faster above the best learning rate than below: in 61 slices of StepLaw's public grid (arXiv:2503.04715),
within 2 to 8 % of the lowest loss, the ratio is 0.05 to 0.46 (5th to 95th percentile)."""
_TYPICAL_NOISE: Final = 1e-3
"""Relative noise of a final loss, assumed until it is estimated; estimating both at once converges to zero noise."""
_TYPICAL_DOF: Final = 2.0
"""Degrees of freedom of the typical noise if fewer than :data:`_ENOUGH_CELLS` cells moderate each other."""
_ENOUGH_CELLS: Final = 3
_SMALL_WIDTH: Final = 0.04
"""Kernel width of a small sweep."""
_SURFACES: Final = ((2, 0.02), (3, 0.03), (4, 0.04))
"""Degree and kernel width (relative loss) of the polynomials that are averaged on a dense grid."""


@dataclass(frozen=True)
class Cell:
    """The runs at one size and token budget.

    :param settings: varied setting (``lr``, ``batch``) → its value in each run, positive
    :param losses: final losses, nats per token
    """

    settings: Mapping[str, Sequence[float]]
    losses: Sequence[float]


@dataclass(frozen=True)
class Optimum:
    """The settings of the lowest loss.

    :param settings: setting → its optimum
    :param log_errors: setting → standard error of the optimum's logarithm
    :param loss: the loss there
    :param near_edge: settings whose interval reaches beyond the tested values
    :param runs: number of runs of the fit
    """

    settings: Mapping[str, Estimate]
    log_errors: Mapping[str, float]
    loss: Estimate
    near_edge: tuple[str, ...]
    runs: int


@dataclass(frozen=True)
class _Polynomial:
    """A weighted fit around the optimum, in logarithms.

    :param at: the stationary point, relative to the origin ``centre``
    :param centre: origin of the logarithms, ``(d,)``
    :param powers: of the monomials
    :param coefficients: of the monomials
    :param bread: inverse of the weighted normal matrix
    :param precision: precision of the prior of the coefficients, times the noise variance, ``(m,)``
    :param design: ``(n, m)``
    :param weights: ``(n,)``
    :param residuals: ``(n,)``
    :param noise: residual variance
    :param dof: its degrees of freedom
    """

    at: Array
    centre: Array
    powers: tuple[tuple[int, ...], ...]
    coefficients: Array
    bread: Array
    precision: Array
    design: Array
    weights: Array
    residuals: Array
    noise: float
    dof: float

    def covariance(self) -> Array:
        """Return the covariance of the coefficients."""
        if self.dof >= _DENSE:
            leverage = np.einsum("ij,jk,ik->i", self.design, self.bread, self.design) * self.weights
            noise = (self.residuals / (1 - np.clip(leverage, 0, 0.97))) ** 2
        else:
            noise = np.full(len(self.weights), self.noise)
        scores = self.design.T * self.weights
        meat = (scores * noise) @ scores.T + np.diag(self.precision * self.noise)
        return np.asarray(self.bread @ meat @ self.bread)

    def optimum_covariance(self) -> Array:
        """Return the covariance of the stationary point (delta method)."""
        gradients, hessian = _derivatives(self.powers, self.at, self.coefficients)
        jacobian = -np.linalg.solve(hessian, gradients)
        return jacobian @ self.covariance() @ jacobian.T

    def value(self) -> tuple[float, float]:
        """Return the log loss at the stationary point and its standard error."""
        row = _monomials(self.powers, self.at[None])[0]
        return float(row @ self.coefficients), math.sqrt(float(row @ self.covariance() @ row))


def find_optima(cells: Mapping[str, Cell]) -> dict[str, Optimum | FitRefusedError]:
    """Fit the optimum of each cell.

    With few runs (up to some dozens), the fit is a parabola (for two settings a paraboloid) in the logarithms,
    weighted towards the lowest losses. The noise of small cells is moderated by that of the others. The interval for
    one setting is Fieller's. On a dense grid, polynomials of degree 2 to 4 are averaged, and the difference between
    them counts as error.

    :param cells: size → its runs
    :returns: for each cell the optimum, or the refusal
    """
    found: dict[str, Optimum | FitRefusedError] = {}
    fitted: dict[str, tuple[Cell, tuple[str, ...], list[_Polynomial]]] = {}
    for name, cell in cells.items():
        try:
            varied = _varied(cell)
            fitted[name] = cell, varied, _polynomials(cell, varied)
        except FitRefusedError as refused:
            found[name] = refused
    small = [name for name, (_, _, fits) in fitted.items() if fits[0].dof < _DENSE]
    fits_of_small = [fitted[name][2][0] for name in small]
    noises, dofs = _noises([fit.noise for fit in fits_of_small], [fit.dof for fit in fits_of_small])
    for name, noise, dof in zip(small, noises, dofs, strict=True):
        cell, varied, _ = fitted[name]
        try:
            (fit,) = _polynomials(cell, varied, float(noise))
        except FitRefusedError as refused:
            found[name] = refused
            del fitted[name]
            continue
        fitted[name] = cell, varied, [replace(fit, dof=min(float(dof), _DENSE - 1))]
    for name, (cell, varied, fits) in fitted.items():
        try:
            found[name] = _optimum(cell, varied, fits)
        except FitRefusedError as refused:
            found[name] = refused
    return {name: found[name] for name in cells}


def _noises(variances: Sequence[float], dofs: Sequence[float]) -> tuple[Array, Array]:
    """Return the noise of small cells: moderated by each other, or for few cells by the typical noise."""
    if len(variances) >= _ENOUGH_CELLS:
        return moderated_variances(variances, dofs)
    own, weight = np.asarray(variances, float), np.asarray(dofs, float)
    return (weight * own + _TYPICAL_DOF * _TYPICAL_NOISE**2) / (weight + _TYPICAL_DOF), weight + _TYPICAL_DOF


def _varied(cell: Cell) -> tuple[str, ...]:
    varied = tuple(name for name, values in cell.settings.items() if len(set(values)) > 1)
    if not varied:
        raise FitRefusedError("all runs have the same learning rate and batch: vary at least one of them")
    least = SMALLEST_SWEEP if len(varied) == 1 else 3
    for name in varied:
        if (count := len(set(cell.settings[name]))) < least:
            raise FitRefusedError(
                f"{counted(count, f'value of {name} has', f'values of {name} have')} finished: an "
                f"optimum needs {least}, spaced by "
                "a factor of 1.5 to 3"
            )
    needed = len(_powers(len(varied), 2)) + 2
    if len(cell.losses) < needed:
        raise FitRefusedError(
            f"{counted(len(cell.losses), 'run has', 'runs have')} finished: an optimum in "
            f"{' and '.join(varied)} needs {needed}"
        )
    return varied


def _polynomials(cell: Cell, varied: Sequence[str], noise: float | None = None) -> list[_Polynomial]:
    points = np.log(np.array([cell.settings[name] for name in varied], float)).T
    losses = np.log(np.array(cell.losses, float))
    if len(losses) >= _DENSE + len(_powers(len(varied), 4)):
        fits = []
        for degree, width in _SURFACES:
            with contextlib.suppress(FitRefusedError):
                fits.append(_fit(points, losses, _powers(len(varied), degree), width))
        if len(fits) > 1 and all(fit.dof >= _DENSE / 2 for fit in fits):
            return [replace(fit, dof=max(fit.dof, _DENSE)) for fit in fits]
    axes = range(len(varied))
    higher = tuple(tuple(order * (axis == other) for other in axes) for order in (3, 4) for axis in axes)
    shape = np.array([*(_SKEWS.get(name, _SKEW) for name in varied), *[_FOURTH] * len(varied)])
    try:
        fit = _fit(points, losses, _powers(len(varied), 2) + higher, _SMALL_WIDTH, shape, noise)
    except FitRefusedError:
        for name in varied:  # a loss that falls towards an edge has no valley either
            _check_edge(cell, name, cell.settings[name][int(losses.argmin())])
        raise
    for name, log_value in zip(varied, fit.at + fit.centre, strict=True):
        _check_edge(cell, name, math.exp(min(float(log_value), 700.0)))
    return [fit]


def _fit(
    points: Array,
    losses: Array,
    powers: tuple[tuple[int, ...], ...],
    width: float,
    shape: Array | None = None,
    noise: float | None = None,
) -> _Polynomial:
    """Fit a polynomial of the log loss around its minimum.

    :param points: ``(n, d)`` logarithms of the settings
    :param losses: ``(n,)`` log losses
    :param powers: powers of the monomials; the last ones belong to ``shape``
    :param width: relative loss above the lowest at which the weights end; larger if too few runs are within it
    :param shape: ``(2 d, 2)`` prior of the third and fourth order: mean and standard deviation of the coefficients,
        relative to the second's
    :param noise: residual variance, None to estimate it
    """
    d = points.shape[1]
    free = len(powers) - (0 if shape is None else len(shape))
    lowest, centre, estimated = (
        float(losses.min()),
        points[losses.argmin()],
        _TYPICAL_NOISE**2 if noise is None else noise,
    )
    squares = np.ones(d) * 0.01
    for _ in range(6):
        above = np.maximum(losses - lowest, 0)
        reach = max(width, 1.6 * float(np.sort(above)[min(len(above), free + 2) - 1]))
        weights = np.clip(1 - (above / reach) ** 2, 0, 1) ** 2
        near = weights > 1e-6
        design, used = _monomials(powers, points[near] - centre), weights[near]
        normal = (design.T * used) @ design
        if np.linalg.matrix_rank(design[:, :free]) < free:
            raise FitRefusedError(
                "the values near the lowest loss do not span a grid: train more values around it"
            )
        precision, target = np.zeros(len(powers)), np.zeros(len(powers))
        if shape is not None:
            second = np.tile(squares, 2)
            precision[free:] = max(estimated, 1e-16) / (shape[:, 1] * second) ** 2
            target[free:] = precision[free:] * shape[:, 0] * second
        bread = np.linalg.pinv(normal + np.diag(precision), hermitian=True)
        coefficients = bread @ (design.T @ (used * losses[near]) + target)
        at = _stationary(powers, coefficients, points[near] - centre, losses[near])
        residuals = losses[near] - design @ coefficients
        maker = np.eye(len(used)) - design @ bread @ (design.T * used)
        form = (maker.T * used) @ maker
        lowest = float(_monomials(powers, at[None])[0] @ coefficients)
        hessian = _derivatives(powers, at, coefficients)[1]
        squares = np.maximum(np.diag(hessian) / 2, 1e-6)
        if shape is not None:  # the orders are those around the minimum
            centre = centre + at
            at = np.zeros(d)
    if noise is None:
        estimated = float((used * residuals**2).sum()) / max(float(np.trace(form)), 1e-9)
    # of the quadratic form that the variance is (Satterthwaite 1946, doi:10.2307/3002019)
    dof = max(float(np.trace(form)) ** 2 / max(float((form * form).sum()), 1e-300), 0.5)
    return _Polynomial(
        at, centre, powers, coefficients, bread, precision, design, used, residuals, estimated, dof
    )


def _stationary(
    powers: tuple[tuple[int, ...], ...], coefficients: Array, points: Array, losses: Array
) -> Array:
    """Return the minimum of a polynomial near the lowest of the points (Newton's method)."""
    at = points[losses.argmin()]
    span = np.ptp(points, axis=0)
    quadratic = max(sum(power) for power in powers) == 2
    for _ in range(1 if quadratic else 50):
        gradients, hessian = _derivatives(powers, at, coefficients)
        lowest = float(np.linalg.eigvalsh(hessian).min())
        if lowest <= 1e-10:
            if quadratic:
                raise FitRefusedError(_NO_VALLEY)
            hessian = hessian + (1e-3 - lowest) * np.eye(len(hessian))
        step = -np.linalg.solve(hessian, gradients @ coefficients)
        if not quadratic:
            step = np.clip(step, -span / 4, span / 4)
        at = at + step
        if (np.abs(at) > 3 * span).any() and not quadratic:
            raise FitRefusedError(_NO_VALLEY)
        if (np.abs(step) < 1e-10).all():
            break
    if np.linalg.eigvalsh(_derivatives(powers, at, coefficients)[1]).min() <= 1e-10:
        raise FitRefusedError(_NO_VALLEY)
    return np.asarray(at)


_NO_VALLEY: Final = (
    "the losses have no minimum among the tested values: they fall to an edge, or are flat against their noise; "
    "test a wider range"
)


def _check_edge(cell: Cell, name: str, value: float) -> None:
    low, high = min(cell.settings[name]), max(cell.settings[name])
    if low * (1 + 1e-9) < value < high * (1 - 1e-9):
        return
    end, way = ((low, "smallest"), "smaller") if value <= low * (1 + 1e-9) else ((high, "largest"), "larger")
    raise EdgeOptimumError(
        f"the optimum of {name} is at the edge: the losses still fall at the {end[1]} value tested, {end[0]:.3g}; "
        f"train {way} values"
    )


def _optimum(cell: Cell, varied: Sequence[str], fits: Sequence[_Polynomial]) -> Optimum:
    places = np.array([fit.at + fit.centre for fit in fits])
    place = places.mean(0)
    covariances = [fit.optimum_covariance() for fit in fits]
    variances = np.mean([np.diag(each) for each in covariances], axis=0)
    if len(fits) > 1:
        variances = variances + places.var(0, ddof=1)
    dof = min(fit.dof for fit in fits)
    errors = np.sqrt(np.maximum(variances, 0))
    settings, near_edge = {}, []
    for index, name in enumerate(varied):
        interval = Estimate.of(float(place[index]), float(errors[index]), dof)
        if len(varied) == 1 and len(fits) == 1:
            interval = _fieller(fits[0])
        interval = interval.exp()
        if interval.low < min(cell.settings[name]) or interval.high > max(cell.settings[name]):
            near_edge.append(name)
        settings[name] = interval
    losses = np.array([fit.value() for fit in fits])
    loss_error = math.sqrt(float((losses[:, 1] ** 2).mean() + losses[:, 0].var()))
    return Optimum(
        settings,
        dict(zip(varied, map(float, errors), strict=True)),
        Estimate.of(float(losses[:, 0].mean()), loss_error, dof).exp(),
        tuple(near_edge),
        len(cell.losses),
    )


def _fieller(fit: _Polynomial) -> Estimate:
    """Return Fieller's interval of a parabola's vertex (1954, doi:10.1111/j.2517-6161.1954.tb00159.x).

    :raises FitRefusedError: if the interval is unbounded, because the curvature does not differ significantly from
        zero
    """
    covariance, t2 = fit.covariance(), quantile(fit.dof) ** 2
    bend = fit.coefficients[2]  # without a slope, the origin is the vertex
    a = bend**2 - t2 * covariance[2, 2]
    b = -t2 * covariance[1, 2]
    c = -t2 * covariance[1, 1]
    if a <= 0 or b * b < a * c:
        raise FitRefusedError(
            "the losses have too little curvature for their noise: test a wider range, or repeat runs with other seeds"
        )
    root = math.sqrt(b * b - a * c)
    centre = float(fit.centre[0])
    low, high = centre + (-b - root) / (2 * a), centre + (-b + root) / (2 * a)
    return Estimate(float(fit.at[0]) + centre, low, high)


def _powers(dimensions: int, degree: int) -> tuple[tuple[int, ...], ...]:
    every = itertools.product(range(degree + 1), repeat=dimensions)
    return tuple(
        sorted((power for power in every if sum(power) <= degree), key=lambda each: (sum(each), each))
    )


def _monomials(powers: Sequence[tuple[int, ...]], points: Array) -> Array:
    return np.stack([np.prod(points ** np.array(power), axis=1) for power in powers], axis=1)


def _derivatives(powers: Sequence[tuple[int, ...]], at: Array, coefficients: Array) -> tuple[Array, Array]:
    """Return the monomials' gradients at a point ``(d, m)``, and the polynomial's Hessian there."""
    d, exponents = len(at), np.array(powers)
    gradients, hessian = np.empty((d, len(powers))), np.empty((d, d))
    for i in range(d):
        once = exponents - np.eye(d, dtype=int)[i]
        gradients[i] = exponents[:, i] * np.prod(at ** np.maximum(once, 0), axis=1)
        for j in range(d):
            twice = once - np.eye(d, dtype=int)[j]
            factors = exponents[:, i] * once[:, j]
            hessian[i, j] = (factors * np.prod(at ** np.maximum(twice, 0), axis=1)) @ coefficients
    return gradients, hessian
