"""Stability of each training: NaN losses, loss spikes, gradient norms, the iteration of divergence."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.tables.points import Figure, PointTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.logs.log_lines import IterationRecord
    from airflow_megatron.results.tables.trainings import Branch

_WINDOW: Final = 50
"""Number of preceding logged iterations with which a loss is compared."""
_LEAST: Final = 10
_SPIKE: Final = 6.0
"""Number of deviations above the median of the window that make a spike."""
_FLOOR: Final = 0.01
"""Minimum deviation as a fraction of the loss, because smooth curves have almost none."""


@dataclass(frozen=True, slots=True)
class HealthRow:
    """The stability of one training. Unknown values are None.

    :param point: its point
    :param sweep_params: the swept parameters
    :param outcome: its state
    :param branch: its branch
    :param learning_rate: the peak learning rate

    :param nan_iterations: number of iterations with a NaN loss
    :param skipped_iterations: number of iterations without a parameter update
    :param spikes: number of loss spikes, as :func:`loss_spikes` defines them
    :param largest_spike: height of the largest spike above the losses before it, nats per token
    :param diverged_at: first iteration of the NaN losses at the end; the one after the last logged iteration if the
        training ended at a NaN loss that was not logged
    :param grad_norm: median gradient norm
    :param largest_grad_norm: largest gradient norm
    """

    point: str
    sweep_params: Mapping[str, Any]
    outcome: str
    branch: str
    learning_rate: float | None
    nan_iterations: int
    skipped_iterations: int
    spikes: int
    largest_spike: float | None
    diverged_at: int | None
    grad_norm: float | None
    largest_grad_norm: float | None


def health_rows(branches: Sequence[Branch]) -> list[HealthRow]:
    """Return a row for each training that has logged an iteration."""
    return [_row(branch) for branch in branches if branch.training.iterations]


def _row(branch: Branch) -> HealthRow:
    records = branch.training.iterations
    norms = [
        record.grad_norm
        for record in records
        if record.grad_norm is not None and math.isfinite(record.grad_norm)
    ]
    spikes = loss_spikes(records)
    return HealthRow(
        point=branch.row.point,
        sweep_params=branch.row.sweep_params,
        outcome="diverged" if branch.row.diverged else branch.row.state,
        branch=branch.row.branch,
        learning_rate=branch.row.learning_rate,
        nan_iterations=sum(max(record.nan_iterations or 0, record.is_nan) for record in records),
        skipped_iterations=sum(branch.training.skipped),
        spikes=len(spikes),
        largest_spike=max(spikes, default=None),
        diverged_at=_diverged_at(records) or (records[-1].iteration + 1 if branch.row.diverged else None),
        grad_norm=statistics.median(norms) if norms else None,
        largest_grad_norm=max(norms, default=None),
    )


def loss_spikes(records: Sequence[IterationRecord]) -> list[float]:
    """Return the height of each spike of the loss above the losses before it, nats per token.

    A spike is a series of consecutive logged losses that are more than six deviations above the median of the fifty
    losses before it. The deviation is the median absolute deviation, scaled to the standard deviation of a normal
    distribution, and at least 1 % of the loss.

    :param records: records of one training, ascending
    """
    window: deque[float] = deque(maxlen=_WINDOW)
    spikes: list[float] = []
    inside = False
    for record in records:
        loss = record.loss
        if loss is None or not math.isfinite(loss):
            continue
        if len(window) >= _LEAST:
            middle = statistics.median(window)
            deviation = 1.4826 * statistics.median(abs(each - middle) for each in window)
            above = loss - middle
            if above > _SPIKE * max(deviation, _FLOOR * abs(middle)):
                spikes = [*spikes[:-1], max(spikes[-1], above)] if inside else [*spikes, above]
                inside = True
                continue
        inside = False
        window.append(loss)
    return spikes


def _diverged_at(records: Sequence[IterationRecord]) -> int | None:
    first = None
    for record in reversed(records):
        if not record.is_nan:
            break
        first = record.iteration
    return first


_FIGURES: Final[tuple[Figure[HealthRow], ...]] = (
    Figure("branch", "branch", lambda row: row.branch, ""),
    Figure("NaN iterations", "nan_iterations", lambda row: row.nan_iterations, "d"),
    Figure("skipped", "skipped_iterations", lambda row: row.skipped_iterations, "d"),
    Figure("spikes", "spikes", lambda row: row.spikes, "d"),
    Figure("largest spike", "largest_spike", lambda row: row.largest_spike, ".3f"),
    Figure("diverged at", "diverged_at", lambda row: row.diverged_at, "d"),
    Figure("gradient norm", "grad_norm", lambda row: row.grad_norm, ".3g"),
    Figure("largest norm", "largest_grad_norm", lambda row: row.largest_grad_norm, ".3g"),
)


def health_table(rows: Sequence[HealthRow]) -> PointTable[HealthRow]:
    """Make the table of stability.

    :param rows: at least one
    """
    return PointTable(
        name="stability",
        title="Stability",
        note="Spikes: logged losses of more than six deviations above the median of the fifty before. Norms of the"
        " gradient are those before clipping, the median and the largest.",
        figures=_FIGURES,
        rows=rows,
    )
