"""Estimates with their intervals, and linear regressions whose intervals are valid for unequal noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

LEVEL: Final = 0.95
"""Nominal coverage of all intervals."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval.

    :param value: the estimate
    :param low: lower end of the interval of nominal coverage :data:`LEVEL`
    :param high: upper end
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, error: float, dof: float) -> Estimate:
        """Return the t interval around a value.

        :param error: standard error
        :param dof: degrees of freedom
        """
        half = quantile(dof) * error
        return cls(float(value), float(value - half), float(value + half))

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def exp(self) -> Estimate:
        """Return the estimate of the exponential, for quantities whose logarithm was fitted."""
        return Estimate(*(float(np.exp(min(each, 700.0))) for each in (self.value, self.low, self.high)))

    def to_json(self) -> dict[str, float]:
        """Return a JSON object."""
        return {"value": self.value, "low": self.low, "high": self.high}


def quantile(dof: float) -> float:
    """Return the t quantile of a two-sided interval at :data:`LEVEL`."""
    return float(special.stdtrit(max(dof, 1.0), (1 + LEVEL) / 2))


def moderated_variances(variances: Sequence[float], dofs: Sequence[float]) -> tuple[Array, Array]:
    """Shrink the noise variances of several small fits towards each other.

    Smyth 2004, doi:10.2202/1544-6115.1027, section 6.2.

    :param variances: residual variance of each fit
    :param dofs: its degrees of freedom
    :returns: the moderated variances and their degrees of freedom; a single fit keeps its own
    """
    s2, d = np.asarray(variances, float), np.asarray(dofs, float)
    if len(s2) < 2:
        return s2, d
    floor = 1e-12 * max(float(s2.max()), 1e-300)
    z = np.log(np.maximum(s2, floor)) - special.digamma(d / 2) + np.log(d / 2)
    excess = float(z.var(ddof=1) - special.polygamma(1, d / 2).mean())
    if excess <= 0:
        prior_dof, prior = 1e6, float((d * s2).sum() / d.sum())
    else:
        prior_dof = 2 * _trigamma_inverse(excess)
        prior = math.exp(float(z.mean()) + float(special.digamma(prior_dof / 2)) - math.log(prior_dof / 2))
    pooled = (prior_dof * prior + d * s2) / (prior_dof + d)
    # the degrees of freedom of the prior are estimated too, at most those of all fits together
    return pooled, np.minimum(d + prior_dof, d.sum())


def _trigamma_inverse(value: float) -> float:
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


@dataclass(frozen=True)
class LinearFit:
    """A linear regression.

    :param coefficients: ``(p,)``, one per column of the design
    :param covariance: ``(p, p)``, of the coefficients
    :param dof: degrees of freedom of the intervals
    :param between: standard deviation of the values around the law beyond their own errors
    """

    coefficients: Array
    covariance: Array
    dof: float
    between: float

    def estimate(self, row: Any) -> Estimate:
        """Return the value at a row of the design, with its interval."""
        row = np.asarray(row, float)
        return Estimate.of(
            float(row @ self.coefficients), math.sqrt(max(0.0, float(row @ self.covariance @ row))), self.dof
        )

    def coefficient(self, index: int) -> Estimate:
        """Return a coefficient with its interval."""
        return self.estimate(np.eye(len(self.coefficients))[index])


def mixed_regression(design: Array, values: Array, variances: Array) -> LinearFit:
    """Fit values that scatter around a law by more than their own errors.

    The scatter is a random effect, by Paule and Mandel's moment equation; the covariance is Knapp and Hartung's
    (2003, doi:10.1002/sim.1482), with t quantiles.

    :param design: ``(n, p)``, n > p
    :param values: ``(n,)``
    :param variances: squared standard errors of the values, ``(n,)``
    """
    n, p = design.shape
    scale = float(np.median(variances)) or 1.0

    def weighted(between: float) -> tuple[Array, Array, float]:
        weights = 1 / np.maximum(variances + between, 1e-12 * scale)
        inverse = np.linalg.inv((design.T * weights) @ design)
        coefficients = inverse @ (design.T @ (weights * values))
        return coefficients, inverse, float((weights * (values - design @ coefficients) ** 2).sum())

    low, high = 0.0, 0.0
    if weighted(0.0)[2] > n - p:
        high = scale
        while weighted(high)[2] > n - p:
            high *= 4
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if weighted(middle)[2] > n - p else (low, middle)
    coefficients, inverse, chi2 = weighted(high)
    return LinearFit(coefficients, inverse * (chi2 / (n - p)), n - p, math.sqrt(high))
