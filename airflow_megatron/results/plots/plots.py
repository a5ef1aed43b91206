"""Plots of a sweep's results.

Each plot has one panel per group of points (equal swept parameters except the learning rate, usually the model's size)
and colours by learning rate, so that it stays readable with a hundred runs. Colours come from a map that is even in
lightness and safe for the colour-blind; legends are outside the axes. Files are PNG and SVG, and equal results give
equal bytes.
"""

from __future__ import annotations

import itertools
import math
import string
import textwrap
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_megatron.results.plots.figures import (
    GREY,
    MOST_PANELS,
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
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.results.tables.trainings import (
    Branch,
    ResultRow,
    ResultTable,
    flatten_evaluation,
    format_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from airflow_megatron.results.plots.figures import FigureMaker

Group = tuple[tuple[str, str], ...]
Curve = list[tuple[float, float]]
CooldownPair = tuple[ResultRow, float, float, float]
"""A cooldown's row, the tokens at its end, the loss of the stable phase there, the loss after it."""

_MOST_LEGEND_ENTRIES: Final = 12
_MOST_ERROR_BARS: Final = 40
_FAILED: Final = "#b2182b"
_MARKERS: Final = (
    *("o", "s", "^", "D", "v", "P", "X", "<", ">", "h"),
    *(f"${letter}$" for letter in string.ascii_uppercase),
)


def draw_plots(table: ResultTable) -> list[Plot]:
    """Draw every plot that the results have data for.

    :param table: the result table with its branches.
    :returns: loss curves, loss against learning rate, gain of the cooldowns, evaluations; each only if there are data
        for it.
    """
    plots = []
    for name, title, note, draw in _PLOTS:
        with attempted(name), figures() as make:
            figure = draw(table, make)
            if figure is not None:
                plots.append(Plot(name, title, note, *rendered(figure)))
    return plots


def loss_curve(branch: Branch, trunk: Branch | None = None) -> Curve:
    """Return a branch's training loss over tokens.

    :param branch: the branch.
    :param trunk: the training from whose checkpoint it starts; the first means include its losses and are as wide as
        those of the trunk, so that the curve continues the trunk's.
    :returns: points (tokens, nats per token), smoothed by a running mean over a thirtieth of the curve; the unit is
        samples if the parameters have no sequence length.
    """
    raw = _losses(branch)
    before = _losses(trunk) if trunk is not None and raw else []
    window = max(1, len(before or raw) // 30)
    before = [point for point in before if point[0] < raw[0][0]][1 - window :] if window > 1 else []
    raw = before + raw
    sums = list(itertools.accumulate((loss for _, loss in raw), initial=0.0))
    curve = []
    for end, (tokens, _) in enumerate(raw, start=1):
        start = max(0, end - window)
        curve.append((tokens, (sums[end] - sums[start]) / (end - start)))
    return curve[len(before) :]


def _losses(branch: Branch) -> Curve:
    """Return the logged losses of a training, without smoothing."""
    per_sample = branch.job.seq_length or 1
    return [
        (float(record.consumed_samples * per_sample), record.loss)
        for record in branch.training.iterations
        if record.loss is not None and math.isfinite(record.loss)
    ]


def loss_at(curve: Curve, tokens: float) -> float | None:
    """Interpolate a curve linearly at a number of tokens; None outside of its range."""
    if not curve or not curve[0][0] <= tokens <= curve[-1][0]:
        return None
    for (left, low), (right, high) in itertools.pairwise(curve):
        if left <= tokens <= right:
            return low if right == left else low + (high - low) * (tokens - left) / (right - left)
    return curve[-1][1]


def _loss_curves(table: ResultTable, make: FigureMaker) -> Figure | None:
    curves = {id(branch): loss_curve(branch, table.parent_of(branch)) for branch in table.branches}
    if not any(len(curve) > 1 for curve in curves.values()):
        return None
    colours = _Colours(table.rows)
    panels = colours.panels(table.rows)
    figure, axes = make(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        inside = [branch for branch in table.branches if colours.panel_of(branch.row) == panel]
        shown: list[float] = []
        for branch in inside:
            curve = curves[id(branch)]
            if not curve:
                continue
            colour = colours.of(branch.row)
            parent = table.parent_of(branch)
            cooldown = branch.row.parent_branch is not None
            if parent is not None:
                curve = _branch_point(curves[id(parent)], curve) + curve
            xs, ys = zip(*curve, strict=True)
            axis.plot(
                xs, ys, color=colour, lw=1.1 if cooldown else 1.4, ls=(0, (4, 1.2)) if cooldown else "-"
            )
            if cooldown:
                axis.plot(xs[-1:], ys[-1:], marker="o", ms=3.2, color=colour)
            if branch.row.diverged or branch.row.state == StageState.FAILED:
                axis.plot(xs[-1:], ys[-1:], marker="x", ms=7, mew=2, color=_FAILED)
            shown += ys
        _panel_title(axis, panel, inside)
        _zoom(axis, shown)
        _count_axis(axis, "x")
    outer_labels(axes, _tokens_label(table), "training loss (nats per token)")
    entries = [
        line_entry("-", "stable phase"),
        line_entry((0, (4, 1.2)), "cooldown", marker="o"),
    ]
    if any(branch.row.diverged or branch.row.state == StageState.FAILED for branch in table.branches):
        entries.append(line_entry("", "failed or diverged", marker="x", colour=_FAILED))
    return colours.legend(figure, axes, entries)


def _loss_by_learning_rate(table: ResultTable, make: FigureMaker) -> Figure | None:
    rows = [row for row in table.rows if row.learning_rate]
    known = [row for row in rows if row.loss is not None]
    if len({row.learning_rate for row in rows}) < 2 or not known:
        return None
    # Losses on different data are not comparable: if one validation loss is missing, use training losses for all.
    validated = all(row.validation_loss is not None for row in known)
    branches = _branches_by_tokens(rows)
    groups = list(dict.fromkeys(row.group for row in rows))
    colours = palette(len(groups))
    figure, axes = make(len(branches))
    for axis, branch in zip(axes, branches, strict=True):
        inside = [row for row in rows if row.branch == branch]
        for index, group in enumerate(groups):
            marker = _MARKERS[index % len(_MARKERS)]
            of_group = [row for row in inside if row.group == group]
            losses = [
                (row.learning_rate or 0.0, row.validation_loss if validated else row.train_loss)
                for row in of_group
                if not row.diverged
            ]
            good = sorted((rate, loss) for rate, loss in losses if loss is not None and math.isfinite(loss))
            if not good:
                continue
            xs, ys = zip(*good, strict=True)
            axis.plot(xs, ys, marker=marker, ms=4.5, lw=1.4, color=colours[index])
            if len(good) > 1:
                best = min(good, key=lambda point: point[1])
                axis.plot(*best, marker="*", ms=12, color=colours[index], mec="white", mew=0.8, zorder=4)
        lost = sorted(
            {row.learning_rate or 0.0 for row in inside if row.diverged or row.state == StageState.FAILED}
        )
        if lost:
            axis.plot(
                lost, [0.97] * len(lost), ls="", marker="x", ms=7, mew=2, color=_FAILED,
                transform=axis.get_xaxis_transform(), clip_on=False,
            )  # fmt: skip
        _learning_rate_axis(axis, sorted({row.learning_rate for row in rows if row.learning_rate}))
        axis.set_title(plain(_branch_title(branch, inside)))
    outer_labels(
        axes, "peak learning rate", f"{'validation' if validated else 'training'} loss (nats per token)"
    )
    entries = [
        line_entry(
            "-",
            _group_label(group, table.rows),
            marker=_MARKERS[index % len(_MARKERS)],
            colour=colours[index],
        )
        for index, group in enumerate(groups)
    ]
    entries.append(line_entry("", "best", marker="*"))
    if any(row.diverged or row.state == StageState.FAILED for row in rows):
        entries.append(line_entry("", "failed or diverged", marker="x", colour=_FAILED))
    return legend(figure, entries)


def _cooldown_gain(table: ResultTable, make: FigureMaker) -> Figure | None:
    pairs, kind = _cooldown_pairs(table)
    if not pairs:
        return None
    colours = _Colours(table.rows)
    panels = colours.panels([row for row, *_ in pairs])
    figure, axes = make(len(panels))
    budgets = sorted({tokens for _, tokens, _, _ in pairs})
    for axis, panel in zip(axes, panels, strict=True):
        inside = [pair for pair in pairs if colours.panel_of(pair[0]) == panel]
        rates = sorted({row.learning_rate or 0.0 for row, *_ in inside})
        for row, tokens, stable, cooled in inside:
            # Runs of one budget are side by side, by learning rate.
            step = rates.index(row.learning_rate or 0.0) - (len(rates) - 1) / 2
            x = budgets.index(tokens) + step * min(0.12, 0.7 / max(1, len(rates)))
            colour = colours.of(row)
            axis.plot([x, x], [stable, cooled], color=colour, lw=1.6)
            axis.plot([x], [stable], marker="o", ms=5, mfc="white", mec=colour, mew=1.4)
            axis.plot([x], [cooled], marker="o", ms=5, color=colour)
        axis.set_xticks(range(len(budgets)), [format_count(budget) for budget in budgets])
        axis.set_xlim(-0.6, len(budgets) - 0.4)
        axis.grid(visible=False, axis="x")
        _panel_title(
            axis, panel, [branch for branch in table.branches if colours.panel_of(branch.row) == panel]
        )
    outer_labels(axes, f"budget ({_tokens_label(table)})", f"{kind} loss (nats per token)")
    entries = [
        line_entry("", "stable phase at the budget", marker="o", hollow=True),
        line_entry("", "cooled down", marker="o"),
    ]
    return colours.legend(figure, axes, entries)


def _cooldown_pairs(table: ResultTable) -> tuple[list[CooldownPair], str]:
    """Return each cooldown with its stable phase, and the kind of loss.

    The kind is the validation loss if, for every cooldown, both were validated at the cooldown's last iteration;
    otherwise the training loss.
    """
    trained: list[CooldownPair] = []
    validated: list[CooldownPair] = []
    for branch in table.branches:
        row, last, trunk = branch.row, branch.training.last, table.parent_of(branch)
        if trunk is None or last is None or row.state != StageState.FINISHED:
            continue
        tokens = float(last.consumed_samples * (branch.job.seq_length or 1))
        stable = loss_at(loss_curve(trunk), tokens)
        if stable is None or row.train_loss is None:
            continue
        trained.append((row, tokens, stable, row.train_loss))
        before = _loss_during_training(trunk, last.iteration)
        after = _loss_during_training(branch, last.iteration)
        if before is not None and after is not None:
            validated.append((row, tokens, before, after))
    return (validated, "validation") if len(validated) == len(trained) else (trained, "training")


def _loss_during_training(branch: Branch, iteration: int) -> float | None:
    """Return the validation loss at an iteration, except the final one, which uses other samples."""
    for record in branch.training.validations:
        if record.iteration == iteration and record.split == "validation" and not record.final:
            return record.loss
    return None


def _evaluations(table: ResultTable, make: FigureMaker) -> Figure | None:
    points: dict[str, list[tuple[ResultRow, float, float, float]]] = {}
    for branch in table.branches:
        per_iteration = _tokens_per_iteration(branch)
        for iteration, results in branch.run.evaluations.items():
            values, errors = flatten_evaluation(results)
            for name, value in values.items():
                points.setdefault(name, []).append(
                    (branch.row, iteration * per_iteration, value, errors.get(name, 0.0))
                )
    if not points:
        return None
    colours = _Colours(table.rows)
    groups = list(dict.fromkeys(row.group for row in table.rows))
    drawn_points = sorted(points.items())[:MOST_PANELS]
    figure, axes = make(len(drawn_points))
    with_bars = False
    for axis, (name, measured) in zip(axes, drawn_points, strict=True):
        lines: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
        rows = {row.point: row for row, *_ in measured}
        for row, tokens, value, error in measured:
            lines.setdefault((row.point, row.parent_branch is None), []).append((tokens, value, error))
        for (point, stable), line in lines.items():
            row = rows[point]
            xs, ys, bars = zip(*sorted(line), strict=True)
            drawn = len(measured) <= _MOST_ERROR_BARS and any(bars)
            colour = colours.of(row)
            axis.errorbar(
                xs,
                ys,
                yerr=bars if drawn else None,
                marker=_MARKERS[groups.index(row.group) % len(_MARKERS)],
                ms=4.5,
                lw=0.9,
                capsize=2,
                color=colour,
                mfc="white" if stable else colour,
                ls=":" if stable else "-",
            )
            with_bars |= drawn
        axis.set_title(textwrap.fill(plain(name), 40))
        _count_axis(axis, "x")
    outer_labels(axes, _tokens_label(table), "value ± standard error" if with_bars else "value")
    entries = [
        line_entry("", _group_label(group, table.rows), marker=_MARKERS[index % len(_MARKERS)])
        for index, group in enumerate(groups)
        if len(groups) > 1 and colours.by_rate
    ]
    entries += [
        line_entry("", "stable phase", marker="o", hollow=True),
        line_entry("", "cooled down", marker="o"),
    ]
    return colours.legend(figure, axes, entries)


class _Colours:
    """Colours by learning rate if the sweep has several, otherwise by group of points."""

    def __init__(self, rows: Sequence[ResultRow]) -> None:
        self._rows = rows
        self._rates = sorted({row.learning_rate for row in rows if row.learning_rate})
        self._groups = list(dict.fromkeys(row.group for row in rows))
        self.by_rate = len(self._rates) > 1
        self._palette = palette(len(self._rates) if self.by_rate else len(self._groups))

    def of(self, row: ResultRow) -> str:
        if self.by_rate:
            return self._palette[self._rates.index(row.learning_rate)] if row.learning_rate else GREY
        return self._palette[self._groups.index(row.group)]

    def panels(self, rows: Iterable[ResultRow]) -> list[Group]:
        return list(dict.fromkeys(self.panel_of(row) for row in rows))

    def panel_of(self, row: ResultRow) -> Group:
        return row.group if self.by_rate else ()

    def legend(self, figure: Figure, axes: Sequence[Axes], entries: Sequence[Any]) -> Figure:
        labels = (
            [f"lr {rate:.3g}" for rate in self._rates]
            if self.by_rate
            else [_group_label(group, self._rows) for group in self._groups if group]
        )
        if len(labels) <= _MOST_LEGEND_ENTRIES:
            coloured = [
                line_entry("-", label, colour=colour)
                for label, colour in zip(labels, self._palette, strict=False)
            ]
            return legend(figure, [*coloured, *entries])
        if self.by_rate:
            self._colour_bar(figure, axes)
        return legend(figure, entries)

    def _colour_bar(self, figure: Figure, axes: Sequence[Axes]) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap

        count = len(self._rates)
        mapping = ScalarMappable(
            BoundaryNorm([index - 0.5 for index in range(count + 1)], count), ListedColormap(self._palette)
        )
        bar = figure.colorbar(mapping, ax=list(axes), pad=0.015, aspect=35, fraction=0.03)
        step = -(-count // 12)
        bar.set_ticks(list(range(0, count, step)), labels=[f"{rate:.3g}" for rate in self._rates[::step]])
        bar.minorticks_off()
        bar.set_label("peak learning rate")


def _branch_point(trunk: Curve, branch: Curve) -> Curve:
    """Return the trunk's last point before a branch, if the trunk has one."""
    before = [point for point in trunk if point[0] <= branch[0][0]]
    reaches = len(before) < len(trunk) or (before and branch[0][0] - before[-1][0] <= 2 * _step(branch))
    return before[-1:] if reaches else []


def _step(curve: Curve) -> float:
    return (curve[-1][0] - curve[0][0]) / max(1, len(curve) - 1)


def _panel_title(axis: Axes, panel: Group, branches: Sequence[Branch]) -> None:
    label = _group_label(panel, [branch.row for branch in branches], separator="\n")
    axis.set_title("\n".join(textwrap.fill(plain(line), 40) for line in label.split("\n")))


def _group_label(group: Group, rows: Iterable[ResultRow], *, separator: str = ": ") -> str:
    rows = list(rows)
    counts = {row.parameters for row in rows if row.group == group and row.parameters}
    parts = [
        ", ".join(f"{key}={value or '–'}" for key, value in _naming_items(group, {row.group for row in rows}))
    ]
    if len(counts) == 1:
        parts.append(f"{format_count(max(counts))} parameters")
    return separator.join(part for part in parts if part)


def _naming_items(group: Group, groups: set[Group]) -> Group:
    """Return the one item that distinguishes all groups, preferably a word; otherwise all items."""
    for key, value in sorted(group, key=lambda item: item[1].replace(".", "").isdigit()):
        values = [dict(other).get(key) for other in groups]
        if len(values) > 1 and len(set(values)) == len(values):
            return ((key, value),)
    return group


def _branch_title(branch: str, rows: Sequence[ResultRow]) -> str:
    tokens = sorted({row.tokens for row in rows if row.tokens and row.state == StageState.FINISHED})
    return f"{branch} ({format_count(tokens[-1])} tokens)" if len(tokens) == 1 else branch


def _branches_by_tokens(rows: Sequence[ResultRow]) -> list[str]:
    order: dict[str, tuple[bool, int]] = {}
    for row in rows:
        # The stable phase first, then the budgets.
        key = (row.parent_branch is not None, row.tokens or 0)
        order[row.branch] = max(order.get(row.branch, key), key)
    return sorted(order, key=lambda branch: (order[branch], branch))


def _tokens_per_iteration(branch: Branch) -> float:
    last = branch.training.last
    if last is None or not last.iteration:
        return 1.0
    return last.consumed_samples / last.iteration * (branch.job.seq_length or 1)


def _tokens_label(table: ResultTable) -> str:
    return "tokens" if any(branch.job.seq_length for branch in table.branches) else "samples"


def _zoom(axis: Axes, losses: Sequence[float]) -> None:
    """Exclude the first steep descent from the view if it takes most of it, because runs differ at the bottom."""
    finite = sorted(losses)
    if len(finite) < 20:
        return
    low, upper = finite[0], finite[int(0.9 * (len(finite) - 1))]
    if finite[-1] - low > 3 * (upper - low) > 0:
        axis.set_ylim(low - 0.06 * (upper - low), low + 1.35 * (upper - low))


def _count_axis(axis: Axes, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    chosen = axis.xaxis if which == "x" else axis.yaxis
    chosen.set_major_locator(MaxNLocator(5))
    chosen.set_major_formatter(FuncFormatter(lambda value, _: format_count(value) if value > 0 else "0"))


def _learning_rate_axis(axis: Axes, rates: Sequence[float]) -> None:
    axis.set_xscale("log")
    axis.minorticks_off()
    shown = rates[:: -(-len(rates) // 9)]
    axis.set_xticks(shown, [f"{rate:.3g}" for rate in shown], rotation=45 if len(shown) > 4 else 0)


_Draw: TypeAlias = "Callable[[ResultTable, FigureMaker], Figure | None]"

_PLOTS: Final[tuple[tuple[str, str, str, _Draw], ...]] = (
    (
        "loss_curves",
        "Training loss over tokens",
        "Cooldowns are dashed and start at their branch point.",
        _loss_curves,
    ),
    (
        "loss_by_learning_rate",
        "Final loss by learning rate",
        "One line per group of points; a star marks the best learning rate.",
        _loss_by_learning_rate,
    ),
    (
        "cooldown_gain",
        "Gain of the cooldown",
        "Open circle: stable phase at the same number of tokens; filled: after the cooldown.",
        _cooldown_gain,
    ),
    (
        "evaluations",
        "Evaluations over tokens",
        "Open markers: checkpoints of the stable phase; filled: after a cooldown.",
        _evaluations,
    ),
)
