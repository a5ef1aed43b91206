"""Maps of the loss over learning rate and batch, one panel for each size and token budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from airflow_megatron.results.plots.figures import (
    MOST_PANELS,
    Plot,
    attempted,
    figures,
    legend,
    line_entry,
    outer_labels,
    plain,
    rendered,
)
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.results.readings.sweep_jobs import format_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from airflow_megatron.results.tables.trainings import ResultRow, ResultTable

_BATCH_NAMES: Final = ("global_batch_size", "batch_size", "gbs", "batch")
_MOST_LABELS: Final = 60
"""Maximum number of cells of a panel for writing the losses into them."""


def draw_maps(table: ResultTable) -> list[Plot]:
    """Draw the maps of a sweep that varies learning rate and batch; nothing for other sweeps."""
    batch = next((name for name in table.parameter_names if name.lower() in _BATCH_NAMES), None)
    if batch is None:
        return []
    panels: dict[str, list[ResultRow]] = {}
    for row in table.rows:
        if row.learning_rate and isinstance(row.sweep_params.get(batch), int | float):
            others = [f"{name}={value}" for name, value in row.group if name != batch]
            panels.setdefault("\n".join([*others, row.branch]), []).append(row)
    panels = {
        title: rows
        for title, rows in panels.items()
        if len({row.learning_rate for row in rows}) > 1 and len({row.sweep_params[batch] for row in rows}) > 1
    }
    if not panels:
        return []
    with attempted("lr_batch"), figures() as make:
        figure, axes = make(min(len(panels), MOST_PANELS))
        for axis, (title, rows) in zip(axes, panels.items(), strict=False):
            _draw(axis, rows, batch)
            axis.set_title(plain(title))
        outer_labels(axes, "peak learning rate", plain(batch))
        entries = [
            line_entry("", "lowest loss", marker="*"),
            line_entry("", "failed, diverged or missing", marker="x"),
        ]
        note = "Lines join equal losses. A star marks the lowest; hatched cells have failed, diverged or are missing."
        return [Plot("lr_batch", "Loss by learning rate and batch", note, *rendered(legend(figure, entries)))]
    return []


def _loss(row: ResultRow, *, validated: bool) -> float | None:
    loss = row.validation_loss if validated else row.train_loss
    good = row.state == StageState.FINISHED and not row.diverged and loss is not None and math.isfinite(loss)
    return loss if good else None


def _draw(axis: Axes, rows: Sequence[ResultRow], batch: str) -> None:
    import matplotlib as mpl

    rates = sorted({row.learning_rate for row in rows if row.learning_rate})
    batches = sorted({float(row.sweep_params[batch]) for row in rows})
    done = [row for row in rows if row.state == StageState.FINISHED and not row.diverged]
    validated = bool(done) and all(row.validation_loss is not None for row in done)
    losses: dict[tuple[int, int], float] = {}
    for row in rows:
        loss = _loss(row, validated=validated)
        if loss is not None and row.learning_rate:
            at = batches.index(float(row.sweep_params[batch])), rates.index(row.learning_rate)
            losses[at] = min(loss, losses.get(at, math.inf))
    grid = [
        [losses.get((down, across), math.nan) for across in range(len(rates))] for down in range(len(batches))
    ]
    axis.set_facecolor("#ececec")
    axis.grid(visible=False)
    if losses:
        low = min(losses.values())
        # otherwise the worst cells would use up the range of colours
        high = sorted(losses.values())[int(0.8 * (len(losses) - 1))]
        axis.pcolormesh(
            grid, cmap="viridis_r", vmin=low, vmax=max(high, low * 1.0001), edgecolors="white", linewidth=0.5
        )
        complete = len(losses) == len(rates) * len(batches)
        if complete and min(len(rates), len(batches)) > 2 and high > low:
            middles = (
                [index + 0.5 for index in range(len(rates))],
                [index + 0.5 for index in range(len(batches))],
            )
            levels = [low + (high - low) * share for share in (0.1, 0.25, 0.5, 0.75)]
            axis.contour(*middles, grid, levels=levels, colors="white", linewidths=0.8)
        down, across = min(losses, key=losses.__getitem__)
        axis.plot([across + 0.5], [down + 0.82], marker="*", ms=11, color="#d55e00", mec="white", mew=0.7)
    for down in range(len(batches)):
        for across in range(len(rates)):
            if (down, across) not in losses:
                axis.add_patch(
                    mpl.patches.Rectangle((across, down), 1, 1, fill=False, hatch="///", lw=0, ec="#8a8a8a")
                )
            elif len(rates) * len(batches) <= _MOST_LABELS:
                loss = losses[down, across]
                dark = loss > (low + high) / 2
                axis.text(
                    across + 0.5, down + 0.42, f"{loss:.3f}", ha="center", va="center", fontsize=7,
                    color="white" if dark else "black",
                )  # fmt: skip
    axis.set_xlim(0, len(rates))
    axis.set_ylim(0, len(batches))
    axis.set_xticks(
        [index + 0.5 for index in range(len(rates))], [f"{rate:.3g}" for rate in rates], rotation=45
    )
    axis.set_yticks(
        [index + 0.5 for index in range(len(batches))],
        [format_value(int(size) if size.is_integer() else size) for size in batches],
    )
