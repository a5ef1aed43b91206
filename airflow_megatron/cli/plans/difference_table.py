"""Print the difference of two plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from airflow_megatron.cli.console.terminal import console
from airflow_megatron.results.readings.sweep_jobs import SWEEP_WIDE, format_value
from airflow_megatron.spec.documents.quantities import counted, slurm_time
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.plan.difference import PlanDifference
    from airflow_megatron.plan.sweep_plan import Plan

_SHOWN = 4


def print_difference(old: Plan, new: Plan, difference: PlanDifference) -> None:
    """Print added (+), removed (-) and changed items."""
    out = console()
    out.print(
        f"{old.sweep} → {new.sweep}: {len(old.points)} → {counted(len(new.points), 'point')}", style="bold"
    )
    for sign, word, names in (
        ("+", "point", difference.appeared),
        ("-", "point", difference.vanished),
        ("+", "stage", difference.stages_appeared),
        ("-", "stage", difference.stages_vanished),
    ):
        for name in names:
            out.print(f"{sign} {word} {name}", style="green" if sign == "+" else "red")
    if difference.changes:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("stage", "parameter", "old", "new", "at"):
            table.add_column(heading, overflow="fold")
        common = len(set(old.points) & set(new.points))
        alike: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
        for change in difference.changes:
            values = [_value(change.name, value) for value in (change.old, change.new)]
            alike.setdefault((change.name, values[0], values[1], change.points), []).append(change.stage)
        for (name, before, now, points), stages in alike.items():
            table.add_row(", ".join(stages), shown(name), before, now, _points(points, common))
        out.print(table)
    if not difference:
        out.print("no difference")
    elif difference.unchanged:
        out.print(f"{counted(difference.unchanged, 'point')} unchanged")


def _value(name: str, value: Any) -> str:
    if name == "slurm.time" and isinstance(value, int):
        return slurm_time(value)
    return '""' if value == "" else "null" if value is None else shown(format_value(value))


def _points(names: Sequence[str], common: int) -> str:
    if len(names) == common > 1:
        return "every point"
    shown = [name or SWEEP_WIDE for name in names[:_SHOWN]]
    return ", ".join(shown) + (f", … ({len(names)} points)" if len(names) > _SHOWN else "")
