"""Render the state of a sweep's jobs for a terminal, with one row for each point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table
from rich.text import Text

from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.results.readings.sweep_jobs import SWEEP_WIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.results.readings.progress import ProgressGrid, StageStatus

_STYLES: Final = {
    StageState.WAITING: "dim",
    StageState.PENDING: "yellow",
    StageState.RUNNING: "cyan",
    StageState.RESTARTING: "yellow",
    StageState.ENDED: "cyan",
    StageState.FINISHED: "green",
    StageState.FAILED: "bold red",
    StageState.CANCELLED: "magenta",
    StageState.BLOCKED: "dim red",
}
_COUNTED: Final = (StageState.WAITING, StageState.BLOCKED)
"""States of jobs that have no line of their own."""


def progress_table(grid: ProgressGrid, *, title: str, rows: int | None = None) -> Table:
    """Return the table of a sweep: the number of finished jobs of each point, and the state of the others.

    :param title: name of the sweep and of its cluster
    :param rows: maximum number of points, unfinished ones first; default: all
    """
    of_points: dict[str, list[StageStatus]] = {point: [] for point in grid.points}
    for status in grid.cells.values():
        of_points[status.point].append(status)
    points = list(of_points)
    if rows is not None and len(points) > rows:
        points = sorted(points, key=lambda point: _finished(of_points[point]) == len(of_points[point]))[:rows]
    hidden = len(of_points) - len(points)
    table = Table(
        title=title,
        caption=grid.summary() + (f"; {hidden} more points not shown" if hidden else ""),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("point", overflow="fold")
    table.add_column("done", justify="right", no_wrap=True)
    table.add_column("jobs that have not finished", overflow="fold")
    for point in points:
        statuses = of_points[point]
        done = _finished(statuses)
        style = "green" if done == len(statuses) else ""
        table.add_row(
            point or SWEEP_WIDE, Text(f"{done}/{len(statuses)}", style=style), _unfinished(statuses)
        )
    return table


def _finished(statuses: Sequence[StageStatus]) -> int:
    return sum(status.state is StageState.FINISHED for status in statuses)


def _unfinished(statuses: Sequence[StageStatus]) -> Text:
    """Return a line for each active or failed job; waiting and blocked jobs are only counted."""
    lines: list[Text] = []
    for status in statuses:
        if status.state in (*_COUNTED, StageState.FINISHED):
            continue
        text = f"{status.stage} {status.text}"
        if status.seconds_left is not None:
            text += f", about {short_duration(status.seconds_left)} left"
        if status.reason:
            text += f": {status.reason}"
        lines.append(Text(text, style=_STYLES[status.state]))
    for state in _COUNTED:
        stages = [status.stage for status in statuses if status.state is state]
        if stages:
            first = stages[0] if len(stages) == 1 else f"{stages[0]} and {len(stages) - 1} more"
            lines.append(Text(f"{state.value}: {first}", style=_STYLES[state]))
    return Text("\n").join(lines)


def short_duration(seconds: float) -> str:
    """Return a duration in one or two units: ``45 s``, ``12 min``, ``3 h 5 min``, ``2 d 4 h``."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
