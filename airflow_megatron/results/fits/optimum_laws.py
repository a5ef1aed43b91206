"""Power laws of the optimum: how the best learning rate and batch depend on N, D and C = 6 N D."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_megatron.results.fits.intervals import mixed_regression
from airflow_megatron.results.fits.loss_laws import collinear
from airflow_megatron.results.fits.refusals import FitRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.results.fits.intervals import Estimate, LinearFit

_LEAST_SPREAD: Final = 2.0


@dataclass(frozen=True)
class OptimumLaw:
    """``optimum = c Π x_j^a_j``.

    :param variables: names of x_j
    :param fit: of the logarithms, around the centres
    :param centres: of ln x_j
    """

    variables: tuple[str, ...]
    fit: LinearFit
    centres: tuple[float, ...]

    def exponent(self, variable: str) -> Estimate:
        """Return the exponent of a variable."""
        return self.fit.coefficient(1 + self.variables.index(variable))

    @property
    def coefficient(self) -> Estimate:
        """Return c."""
        return self.at(**dict.fromkeys(self.variables, 1.0))

    def at(self, **values: float) -> Estimate:
        """Predict the optimum.

        :param values: a value for each variable
        """
        logs = (math.log(values[name]) for name in self.variables)
        row = [1.0, *(each - centre for each, centre in zip(logs, self.centres, strict=True))]
        return self.fit.estimate(row).exp()


def fit_optimum_law(
    variables: Mapping[str, Sequence[float]], optima: Sequence[float], log_errors: Sequence[float]
) -> OptimumLaw:
    """Fit a power law to optima with their errors.

    :param variables: name → its value at each optimum
    :param optima: the optima
    :param log_errors: standard error of each optimum's logarithm
    :raises FitRefusedError: if there are too few optima, or they do not determine the exponents
    """
    names, n = tuple(variables), len(optima)
    if n < len(names) + 2:
        have = "there is no optimum" if not n else "there is 1 optimum" if n == 1 else f"there are {n} optima"
        raise FitRefusedError(
            f"{have} away from the edge: a power law in {' and '.join(names)} needs {len(names) + 2} sizes or budgets"
        )
    logs = np.log(np.array(list(variables.values()), float)).T
    for index, name in enumerate(names):
        if (spread := math.exp(float(np.ptp(logs[:, index])))) < _LEAST_SPREAD:
            raise FitRefusedError(
                f"{name} varies by a factor of {spread:.2g} only: an exponent needs {_LEAST_SPREAD:g} at least"
            )
    if len(names) == 2 and collinear(logs):
        raise FitRefusedError(f"{names[0]} and {names[1]} grow together: their exponents cannot be separated")
    centres = logs.mean(0)
    design = np.concatenate([np.ones((n, 1)), logs - centres], axis=1)
    fit = mixed_regression(design, np.log(np.array(optima, float)), np.array(log_errors, float) ** 2)
    return OptimumLaw(names, fit, tuple(map(float, centres)))
