"""Searches for a learning rate: the results of all ``lr_finder`` stages, and their curves in one figure."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.plots.figures import (
    Plot,
    attempted,
    figures,
    legend,
    line_entry,
    outer_labels,
    palette,
    plain,
    rendered,
)
from airflow_megatron.results.readings.progress import progress_grid
from airflow_megatron.results.readings.sweep_jobs import format_value
from airflow_megatron.results.tables.points import Figure, PointTable
from airflow_megatron.spec.trust.json_records import real, word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from airflow_megatron.results.readings.progress import StageStatus
    from airflow_megatron.results.readings.snapshot import RunSnapshot, SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob

_COMPARED: Final = "optimizer"
"""The swept parameter whose values share a panel."""


@dataclass(frozen=True, slots=True)
class LearningRateSearch:
    """One search; unknown values are None.

    ``Megatron-LM/megatron_core_trainer/optimization/lr_curve.py`` defines the values.

    :param point: name of the point
    :param sweep_params: the swept parameters
    :param outcome: the job's state
    :param optimizer: the optimizer
    :param suggested: the learning rate that it suggests
    :param lowest_rate: learning rate of the lowest loss
    :param lowest_loss: lowest loss, smoothed, in nats per token
    :param steepest_descent: learning rate where the loss falls fastest
    :param blow_up: learning rate from which on the loss is above its start
    :param minima: every local minimum
    :param curve: points (learning rate, smoothed loss)
    :param best: whether it has the lowest loss of the searches that differ only in the optimizer
    """

    point: str
    sweep_params: Mapping[str, Any]
    outcome: str
    optimizer: str | None = None
    suggested: float | None = None
    lowest_rate: float | None = None
    lowest_loss: float | None = None
    steepest_descent: float | None = None
    blow_up: float | None = None
    minima: tuple[float, ...] = ()
    curve: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    best: bool = False

    @property
    def other_params(self) -> str:
        """The swept parameters but the optimizer, as a panel's title."""
        others = [(name, value) for name, value in self.sweep_params.items() if name != _COMPARED]
        return ", ".join(f"{name}={format_value(value)}" for name, value in others)


def read_searches(snapshot: SweepSnapshot, jobs: Sequence[SweepJob]) -> list[LearningRateSearch]:
    """Read the results of a sweep's searches.

    :param snapshot: the run directories.
    :param jobs: the jobs of the plan; other kinds are ignored.
    :returns: one for each ``lr_finder`` job, in the plan's order.
    """
    finders = [job for job in jobs if job.reported_as == "search"]
    if not finders:  # as in most sweeps, whose states need not be read for it
        return []
    cells = progress_grid(snapshot, jobs).cells
    searches = [_search(snapshot.run(job.run_dir), job, cells[job.point, job.stage]) for job in finders]
    losses: dict[str, list[float]] = {}
    for search in searches:
        if search.lowest_loss is not None:
            losses.setdefault(search.other_params, []).append(search.lowest_loss)
    best = {params: min(compared) for params, compared in losses.items() if len(compared) > 1}
    return [
        replace(search, best=search.lowest_loss == best.get(search.other_params, math.nan))
        for search in searches
    ]


def _search(run: RunSnapshot, job: SweepJob, status: StageStatus) -> LearningRateSearch:
    found = run.lr_finder or {}
    lowest = found.get("lowest")
    lowest = lowest if isinstance(lowest, dict) else {}
    minima = found.get("minima")
    return LearningRateSearch(
        point=job.point,
        sweep_params=job.sweep_params,
        outcome=status.state.value,
        optimizer=word(found.get("optimizer")) or job.params.get("optimizer"),
        suggested=real(found.get("suggested")),
        lowest_rate=real(lowest.get("learning_rate")),
        lowest_loss=real(lowest.get("loss")),
        steepest_descent=real(found.get("steepest_descent")),
        blow_up=real(found.get("blow_up")),
        minima=tuple(filter(None, map(real, minima if isinstance(minima, list) else ()))),
        curve=_curve(run.lr_curve),
    )


def _curve(text: str) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float | None, float | None]] = []
    with contextlib.suppress(csv.Error):  # a field that is too long, a NUL
        for row in csv.DictReader(io.StringIO(text)):
            points.append((real(row.get("learning_rate")), real(row.get("loss"))))
    return tuple((rate, loss) for rate, loss in points if rate is not None and loss is not None)


_FIGURES: Final[tuple[Figure[LearningRateSearch], ...]] = (
    Figure("suggested lr", "suggested", lambda search: search.suggested, ".3g"),
    Figure("lowest loss", "lowest_loss", lambda search: search.lowest_loss, ".4f"),
    Figure("best", "best", lambda search: "★" if search.best else None, ""),
    Figure("at lr", "lowest_rate", lambda search: search.lowest_rate, ".3g"),
    Figure("steepest at lr", "steepest_descent", lambda search: search.steepest_descent, ".3g"),
    Figure("blows up at lr", "blow_up", lambda search: search.blow_up, ".3g"),
    Figure("minima", "minima", lambda search: " ".join(f"{rate:.3g}" for rate in search.minima) or None, ""),
)


def search_table(searches: Sequence[LearningRateSearch]) -> PointTable[LearningRateSearch]:
    """Make the table of a sweep's searches.

    :param searches: result of :func:`read_searches`.
    """
    return PointTable(
        name="lr_finder",
        title="Learning-rate searches",
        note="The suggested learning rate is a tenth of the lowest minimum's. ★ lowest loss among the searches that"
        " differ in the optimizer alone. Losses are smoothed, in nats per token.",
        figures=_FIGURES,
        rows=searches,
    )


def draw_searches(searches: Sequence[LearningRateSearch]) -> list[Plot]:
    """Draw the curves of a sweep's searches, with one panel for searches that differ only in the optimizer.

    :param searches: result of :func:`read_searches`.
    :returns: one plot, or none without curves.
    """
    drawn = [search for search in searches if len(search.curve) > 1]
    if not drawn:
        return []
    panels: dict[str, list[LearningRateSearch]] = {}
    for search in drawn:
        panels.setdefault(search.other_params, []).append(search)
    optimizers = list(dict.fromkeys(search.optimizer for search in drawn))
    colours = dict(zip(optimizers, palette(len(optimizers)), strict=True))
    note = "Each curve is one training whose learning rate rises exponentially; dotted lines are the suggested rates."
    with attempted("lr_finder"), figures() as make:
        figure, axes = make(len(panels))
        for axis, (panel, inside) in zip(axes, panels.items(), strict=True):
            for search in inside:
                _draw(axis, search, colours[search.optimizer])
            axis.set_title(plain(panel))
            axis.set_xscale("log")
            # What lies above the losses at the start has blown up.
            low = min(loss for search in inside for _, loss in search.curve)
            start = max(search.curve[0][1] for search in inside)
            if start > low:
                axis.set_ylim(low - 0.06 * (start - low), start + 0.25 * (start - low))
        outer_labels(axes, "learning rate", "training loss, smoothed (nats per token)")
        entries = [
            line_entry("-", str(optimizer), colour=colour)
            for optimizer, colour in colours.items()
            if optimizer
        ]
        entries += [line_entry("", "minimum", marker="o"), line_entry(":", "suggested")]
        return [Plot("lr_finder", "Learning-rate searches", note, *rendered(legend(figure, entries)))]
    return []


def _draw(axis: Axes, search: LearningRateSearch, colour: str) -> None:
    rates, losses = zip(*search.curve, strict=True)
    axis.plot(rates, losses, lw=1.4, color=colour)
    for minimum in search.minima:
        nearest = min(search.curve, key=lambda point: abs(math.log(point[0] / minimum)))
        axis.plot(*nearest, marker="o", ms=4.5, color=colour)
    if search.suggested:
        axis.axvline(search.suggested, ls=":", lw=1.2, color=colour)
