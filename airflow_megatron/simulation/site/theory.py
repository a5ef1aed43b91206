"""Closed formulas, to choose checkpoint intervals and to validate the simulation."""

from __future__ import annotations

import math

from airflow_megatron.simulation.site.site import DAY


def failures_per_second(nodes: int, per_1000_node_days: float) -> float:
    """Return the rate at which a job on *nodes* nodes fails."""
    return nodes * per_1000_node_days / 1000 / DAY


def best_save_interval(save_s: float, rate: float) -> float:
    """Return the interval between checkpoints, in seconds of training, that loses the least time (first order).

    √(2·w/λ): Young, "A first order approximation to the optimum checkpoint interval" (1974); Daly (2006) adds terms
    of higher order.

    :param save_s: w, seconds that a checkpoint takes.
    :param rate: λ, failures per second.
    """
    return math.sqrt(2 * save_s / rate)


def expected_ettr(rate: float, restart_s: float, interval_s: float, save_s: float) -> float:
    """Return Meta's estimate of the effective training time ratio (arXiv 2410.21680, §3.3).

    (1 − λ·(u0 + Δ/2)) / (1 + w/Δ).

    :param rate: λ, failures of the job per second.
    :param restart_s: u0, seconds from a failure to the next iteration.
    :param interval_s: Δ, seconds between two checkpoints.
    :param save_s: w, seconds that a checkpoint takes.
    """
    return (1 - rate * (restart_s + interval_s / 2)) / (1 + save_s / interval_s)
