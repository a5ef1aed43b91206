"""Charts of a study: loss over compute, evaluations over compute and over loss, where trainings diverge."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.logs.log_lines import IterationRecord
from airflow_megatron.results.plots.charts import Chart, Panel, Series
from airflow_megatron.results.plots.figures import MOST_PANELS
from airflow_megatron.results.plots.plots import loss_at, loss_curve
from airflow_megatron.results.store.chance_levels import chance_level
from airflow_megatron.results.tables.trainings import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.results.fits.loss_laws import LossLaw
    from airflow_megatron.results.fits.sweep_fits import SweepFits
    from airflow_megatron.results.tables.evaluation_rows import EvaluationRow
    from airflow_megatron.results.tables.training_health import HealthRow
    from airflow_megatron.results.tables.trainings import Branch, ResultTable

_COMPUTE: Final = "C = 6 N D (operations)"
_MOST_POINTS: Final = 200
_STEPS: Final = 40
_FARTHER: Final = 16.0
"""Factor beyond the maximum compute up to which the law is drawn: four times the size with four times the tokens."""


def study_charts(
    table: ResultTable,
    evaluations: Sequence[EvaluationRow],
    health: Sequence[HealthRow],
    fits: SweepFits | None,
) -> list[Chart]:
    """Return the charts that the results have data for."""
    return [
        *_over_compute(table, fits),
        *_evaluations(table, evaluations),
        *_divergence(table, health),
    ]


def operations(branch: Branch, tokens: float | None = None) -> float | None:
    """Return C = 6 N D of a training, with N without the padding of the vocabulary; None if N or D is unknown.

    :param tokens: D; None for the tokens at its end
    """
    row = branch.row
    size = row.parameters_without_padding or row.parameters
    seen = tokens if tokens is not None else row.tokens
    return 6.0 * size * seen if size and seen and branch.job.seq_length else None


def _over_compute(table: ResultTable, fits: SweepFits | None) -> list[Chart]:
    known = [branch for branch in table.branches if operations(branch)]
    if not known:
        return []
    sizes = sorted({branch.row.parameters_without_padding or branch.row.parameters or 0 for branch in known})
    series: list[Series] = []
    ends: list[Series] = []
    restarts: list[tuple[float, float]] = []
    everything: list[tuple[float, float]] = []
    for branch in known:
        size = branch.row.parameters_without_padding or branch.row.parameters or 0
        curve = loss_curve(branch, table.parent_of(branch))
        points = [(6 * size * tokens, loss) for tokens, loss in curve[:: -(-len(curve) // _MOST_POINTS) or 1]]
        if curve and points[-1][0] != 6 * size * curve[-1][0]:
            points.append((6 * size * curve[-1][0], curve[-1][1]))
        dash = int(branch.row.parent_branch is not None)
        name = f"{format_count(size)} parameters"
        series.append(Series(name, tuple(points), sizes.index(size), line=True, dash=dash, marks=False))
        ends.append(Series("end of a training", tuple(points[-1:])))
        everything += points
        for tokens in _restarts(branch):
            loss = loss_at(curve, tokens)
            restarts += [(6 * size * tokens, loss)] if loss is not None else []
    series += ends
    if restarts:
        series.append(Series("restart", tuple(restarts), 1))
    best = list(itertools.accumulate(sorted(everything), lambda low, each: (each[0], min(low[1], each[1]))))
    step = -(-len(best) // _MOST_POINTS) or 1
    series.append(Series("lowest so far", tuple(best[::step]), line=True, dash=2, marks=False))
    panels = [Panel("Training loss", _COMPUTE, "training loss (nats per token)", tuple(series))]
    for family in fits.families if fits else ():
        if family.surface is not None and family.surface.variables == ("N", "D"):
            cells = [(cell.parameters, cell.tokens, cell.loss) for cell in family.cells]
            panels += _law(family.surface, cells, fits.loss if fits else "", family.family)
    note = (
        "Dashed: cooldowns. The law is drawn at the best size for each budget, to 16 times the most compute, with its"
        " 95 % interval; residuals are those of the losses that it was fitted to."
    )
    return [Chart("loss_over_compute", "Loss over compute", note, tuple(panels))]


def _restarts(branch: Branch) -> list[float]:
    """Return the tokens at which attempts after the first began."""
    per_sample = branch.job.seq_length or 1
    found = []
    for attempt in sorted({log.attempt for log in branch.run.logs if log.stage == branch.job.stage})[1:]:
        logged = branch.run.records(branch.job.stage, attempt)
        first = next((record for record in logged if isinstance(record, IterationRecord)), None)
        if first is not None:
            found.append(float(first.consumed_samples * per_sample))
    return found


def _law(
    surface: LossLaw, cells: Sequence[tuple[float, float, float]], loss: str, family: str
) -> list[Panel]:
    budgets = [6 * n * d for n, d, _ in cells]
    low, high = min(budgets), max(budgets) * _FARTHER
    grid = [low * (high / low) ** (step / _STEPS) for step in range(_STEPS + 1)]
    predicted = [surface.loss(N=(n := surface.allocation("N", c).value), D=c / 6 / n) for c in grid]
    of = f", {family}" if family else ""
    law = Series(
        "law at the best size",
        tuple((c, each.value) for c, each in zip(grid, predicted, strict=True)),
        0,
        line=True,
        marks=False,
        y_ranges=tuple((each.low, each.high) for each in predicted),
        band=True,
    )
    fitted = Series("fitted loss", tuple((c, y) for c, (_, _, y) in zip(budgets, cells, strict=True)), 1)
    residuals = Series(
        "residual",
        tuple(
            (c, 100 * (y / surface.loss(N=n, D=d).value - 1))
            for c, (n, d, y) in zip(budgets, cells, strict=True)
        ),
        1,
    )
    return [
        Panel(f"Law of the {loss} loss{of}", _COMPUTE, f"{loss} loss (nats per token)", (law, fitted)),
        Panel(f"Residuals{of}", _COMPUTE, "loss over the law's (%)", (residuals,)),
    ]


def _evaluations(table: ResultTable, evaluations: Sequence[EvaluationRow]) -> list[Chart]:
    branches = {(branch.row.point, branch.row.branch): branch for branch in table.branches}
    sizes = sorted(
        {branch.row.parameters_without_padding or branch.row.parameters or 0 for branch in table.branches}
    )
    over_compute: dict[str, list[tuple[float, float, float, float]]] = {}
    over_loss: dict[str, list[tuple[float, float, float, float]]] = {}
    chances: dict[str, float] = {}
    for row in evaluations:
        branch = branches.get((row.point, row.branch))
        if branch is None or not row.tokens:
            continue
        measured = row.measurement
        chance = chance_level(measured.task, measured.metric)
        if chance is not None:
            chances[measured.name] = chance
        size = branch.row.parameters_without_padding or branch.row.parameters or 0
        compute, error = operations(branch, row.tokens), measured.stderr or 0.0
        if compute:
            over_compute.setdefault(measured.name, []).append((size, compute, measured.value, error))
        last = branch.training.last
        loss = branch.row.loss if last is not None and row.iteration == last.iteration else None
        if loss is not None:
            over_loss.setdefault(measured.name, []).append((size, loss, measured.value, error))
    charts = []
    for name, label, found, log in (
        ("compute", _COMPUTE, over_compute, True),
        ("loss", "loss at the end (nats per token)", over_loss, False),
    ):
        panels = [
            _metric(metric, label, points, sizes, chances.get(metric), log=log)
            for metric, points in sorted(found.items())[:MOST_PANELS]
        ]
        if panels:
            note = (
                "Values with their standard errors; dotted: the score of random guessing, where it is known."
            )
            charts.append(Chart(f"evaluations_over_{name}", f"Evaluations over {name}", note, tuple(panels)))
    return charts


def _metric(
    name: str,
    label: str,
    points: Sequence[tuple[float, float, float, float]],
    sizes: Sequence[float],
    chance: float | None,
    *,
    log: bool,
) -> Panel:
    series = []
    for index, size in enumerate(sizes):
        own = sorted((x, y, error) for of, x, y, error in points if of == size)
        if own:
            series.append(
                Series(
                    f"{format_count(size)} parameters" if size else "size not known",
                    tuple((x, y) for x, y, _ in own),
                    index,
                    y_ranges=tuple((y - error, y + error) for _, y, error in own),
                )
            )
    if chance is not None:
        ends = [min(x for _, x, _, _ in points), max(x for _, x, _, _ in points)]
        series.append(Series("chance", tuple((x, chance) for x in ends), line=True, dash=2, marks=False))
    return Panel(name, label, "value", tuple(series), log_x=log)


def _divergence(table: ResultTable, health: Sequence[HealthRow]) -> list[Chart]:
    if not any(row.diverged_at for row in health):
        return []
    planned = {(branch.row.point, branch.row.branch): branch.row for branch in table.branches}
    sizes = sorted({row.parameters_without_padding or row.parameters or 0 for row in table.rows})
    series = []
    for index, size in enumerate(sizes):
        points = []
        for row in health:
            result = planned[row.point, row.branch]
            whole = result.train_iters or result.iteration
            if (result.parameters_without_padding or result.parameters or 0) != size or not whole:
                continue
            if row.learning_rate and result.parent_branch is None:
                points.append((row.learning_rate, 100 * min(1.0, (row.diverged_at or whole) / whole)))
        name = f"{format_count(size)} parameters" if size else "size not known"
        series.append(Series(name, tuple(sorted(points)), index, line=True))
    panel = Panel("", "peak learning rate", "iterations before the loss is not a number (%)", tuple(series))
    note = "100 %: the training has not diverged."
    return [Chart("divergence", "Divergence by learning rate", note, (panel,))]
