"""A figure as data, which is drawn as a picture, and by scripts in the report's page."""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.plots.figures import (
    GREY,
    Plot,
    attempted,
    figures,
    legend,
    line_entry,
    plain,
    rendered,
)
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes

_COLOURS: Final = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b"),
    *("#56b4e9", "#7f3fbf", "#8c564b", "#5f9e2f", "#e0437b"),
)
"""Colours of curves, as in ``ui/static/curves.js``; as distinct for the colour-blind as ten colours can be."""
_DASHES: Final[tuple[Any, ...]] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
_MOST_ENTRIES: Final = 24
_DIGITS: Final = 6


def colour_of(number: int) -> str:
    """Return the colour of a curve; no two of the first hundred are equal.

    :param number: from 0
    """
    if number < len(_COLOURS):
        return _COLOURS[number]
    hue = number * 137.508 % 360  # degrees; the golden angle keeps neighbours apart
    parts = colorsys.hls_to_rgb(hue / 360, (0.36, 0.52, 0.28)[number % 3], 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


@dataclass(frozen=True, slots=True)
class Series:
    """A series of values; values that are not finite numbers are left out.

    :param name: name in the legend

    :param points: (x, y) in the order in which a line joins them
    :param colour: number of the colour; None for grey
    :param line: whether a line joins the points
    :param dash: number of the line's pattern, 0 for a solid line
    :param marks: whether each point has a mark
    :param x_ranges: ends of an interval of each x; empty for none
    :param y_ranges: the same of y
    :param band: whether the ranges of y are a band instead of bars
    """

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int | None = None
    line: bool = False
    dash: int = 0
    marks: bool = True
    x_ranges: tuple[tuple[float, float], ...] = ()
    y_ranges: tuple[tuple[float, float], ...] = ()
    band: bool = False

    @property
    def hex_colour(self) -> str:
        """The colour in the notation of CSS and matplotlib."""
        return GREY if self.colour is None else colour_of(self.colour)


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    :param title: title above the axes

    :param x: label of the x axis, with its unit
    :param y: label of the y axis, with its unit
    :param series: the series that it shows
    :param log_x: whether the x axis is logarithmic
    :param log_y: whether the y axis is logarithmic

    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = True
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure.

    :param name: file name without suffix
    :param title: a short description
    :param note: how to read it
    :param panels: at least one
    """

    name: str
    title: str
    note: str
    panels: tuple[Panel, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON data that ``ui/static/charts.js`` draws."""
        return {
            "title": self.title,
            "panels": [
                {
                    "title": shown(panel.title),
                    "x": panel.x,
                    "y": panel.y,
                    "logX": panel.log_x,
                    "logY": panel.log_y,
                    "series": [_series_json(series) for series in panel.series],
                }
                for panel in self.panels
            ],
        }


def _series_json(series: Series) -> dict[str, Any]:
    kept = _finite(series)
    return {
        "name": shown(series.name),
        "colour": None if series.colour is None else series.hex_colour,
        "line": series.line,
        "dash": series.dash,
        "marks": series.marks,
        "band": series.band,
        "x": [_rounded(series.points[index][0]) for index in kept],
        "y": [_rounded(series.points[index][1]) for index in kept],
        "xRanges": [[_rounded(end) for end in series.x_ranges[index]] for index in kept if series.x_ranges],
        "yRanges": [[_rounded(end) for end in series.y_ranges[index]] for index in kept if series.y_ranges],
    }


def _finite(series: Series) -> list[int]:
    return [index for index, point in enumerate(series.points) if all(map(math.isfinite, point))]


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def draw_charts(charts: Iterable[Chart]) -> list[Plot]:
    """Draw charts as pictures; leave out charts that cannot be drawn."""
    plots = []
    for chart in charts:
        with attempted(chart.name), figures() as make:
            figure, axes = make(len(chart.panels))
            for axis, panel in zip(axes, chart.panels, strict=True):
                _draw(axis, panel)
            plots.append(
                Plot(chart.name, chart.title, chart.note, *rendered(legend(figure, _entries(chart))), chart)
            )
    return plots


def _entries(chart: Chart) -> list[Any]:
    entries: dict[str, Any] = {}
    for panel in chart.panels:
        for series in panel.series:
            if series.name and series.points and series.name not in entries:
                entries[series.name] = line_entry(
                    _DASHES[series.dash % len(_DASHES)] if series.line else "",
                    series.name,
                    marker="o" if series.marks else "",
                    colour=series.hex_colour,
                )
    listed = list(entries.values())
    if len(listed) <= _MOST_ENTRIES:
        return listed
    return [*listed[:_MOST_ENTRIES], line_entry("", f"and {len(listed) - _MOST_ENTRIES} more")]


def _draw(axis: Axes, panel: Panel) -> None:
    if panel.log_x:
        axis.set_xscale("log")
    if panel.log_y:
        axis.set_yscale("log")
    for series in panel.series:
        kept = _finite(series)
        if not kept:
            continue
        xs, ys = zip(*(series.points[index] for index in kept), strict=True)
        colour = series.hex_colour
        if series.band and series.y_ranges:
            lows, highs = zip(*(series.y_ranges[index] for index in kept), strict=True)
            axis.fill_between(xs, lows, highs, color=colour, alpha=0.18, lw=0)
        axis.errorbar(
            xs,
            ys,
            xerr=_bars(xs, series.x_ranges, kept),
            yerr=None if series.band else _bars(ys, series.y_ranges, kept),
            color=colour,
            ls=_DASHES[series.dash % len(_DASHES)] if series.line else "",
            lw=1.2,
            elinewidth=0.8,
            marker="o" if series.marks else "",
            ms=4 if len(kept) < 200 else 2,
            capsize=2 if series.x_ranges or series.y_ranges else 0,
        )
    axis.set_title(plain(panel.title))
    axis.set_xlabel(plain(panel.x))
    axis.set_ylabel(plain(panel.y))


def _bars(
    values: Sequence[float], ranges: Sequence[tuple[float, float]], kept: Sequence[int]
) -> list[list[float]] | None:
    if not ranges:
        return None
    pairs = list(zip(values, (ranges[index] for index in kept), strict=True))
    return [
        [max(0.0, value - low) for value, (low, _) in pairs],
        [max(0.0, high - value) for value, (_, high) in pairs],
    ]
