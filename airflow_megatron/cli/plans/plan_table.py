"""Print a plan in a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from airflow_megatron.cli.console.terminal import console
from airflow_megatron.plan.job_names import short_name
from airflow_megatron.plan.overview import StageOverview, axes, shortened, swept_values, waits_for
from airflow_megatron.requirements.queue_estimates import gpu_hours, site_cost
from airflow_megatron.results.readings.sweep_jobs import format_value
from airflow_megatron.results.tables.trainings import format_count
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.requirements.training_estimates import JobEstimate
    from airflow_megatron.spec.model.schema import BillingSection

_MOST_VALUES = 12
_MOST_COLUMNS = 6
_MOST_TEXT = 80


def print_plan(
    plan: Plan, stages: Sequence[StageOverview], most_points: int, billing: BillingSection | None = None
) -> None:
    """Print the axes, the stage tree, the jobs of each stage at the first points, and the cost of all jobs."""
    out = console()
    out.print(f"{plan.sweep} on {plan.cluster}", style="bold")
    found = axes(plan)
    if found:
        out.print(_axes_table(found))
    out.print(_stage_table(stages))
    if most_points:
        out.print(_points_table(plan, found, most_points))
        out.print(_jobs_table(stages, most_points))
    total = gpu_hours(plan.jobs)
    if total.hours or total.unbounded or not total.own_scripts:
        bound = f"at most {total} GPU-hours" if total.hours or total.unbounded else "no GPUs"
        out.print(f"{bound} (walltime × GPUs, one attempt of each job)")
    if total.own_scripts:
        out.print(
            f"GPU-hours of {counted(total.own_scripts, 'job')} not known: their own scripts request the resources"
        )
    if billing and (cost := site_cost(plan.jobs, billing)).hours:
        nodes = "".join(f", {rate:g} per node-hour of {name}" for name, rate in billing.per_node_hour.items())
        out.print(
            f"at most {cost} {billing.unit} ({billing.per_gpu_hour:g} per GPU-hour{nodes})", markup=False
        )
    _print_estimates(plan)
    if total.unbounded:
        out.print(f"? = {counted(total.unbounded, 'job')} with GPUs and without walltime")
    out.print(f"{counted(len(plan.points), 'point')}, {counted(len(plan.jobs), 'job')}, digest {plan.digest}")


def _print_estimates(plan: Plan) -> None:
    """Print the estimated GPU memory and time of the trainings, or the reason why there is no estimate."""
    out = console()
    estimates = plan.estimates
    if estimates.unknown_gpu and any(job.runs_trainer for job in plan.jobs):
        out.print(f"no estimates of memory and GPU-hours: {estimates.unknown_gpu}")
    for reason, names in _by_reason(estimates.missing).items():
        out.print(f"no estimate of {_jobs(names)}: {reason}")
    found = estimates.jobs.values()
    if not found:
        return
    sizes = sorted({each.needs.parameters.total for each in found})
    own = sorted({each.needs.parameters.without_padding for each in found})
    memory = sorted(each.memory_gb for each in found)
    hours = [each.gpu_hours for each in found]
    size = _span(format_count(sizes[0]), format_count(sizes[-1]))
    unpadded = _span(format_count(own[0]), format_count(own[-1]))
    size += " parameters" + (f" ({unpadded} without the vocabulary's padding)" if unpadded != size else "")
    span = _span(f"{memory[0]:.0f}", f"{memory[-1]:.0f}")
    text = f"estimated: {size}, {span} GB on the fullest GPU"
    if None not in hours:
        text += f", {sum(filter(None, hours)):,.1f} GPU-hours of training"
    if rates := sorted(each.mfu for each in found if each.mfu is not None):
        text += f", {_span(f'{rates[0]:.0%}', f'{rates[-1]:.0%}')} MFU at the reported step times"
    out.print(text)
    _print_stages(estimates.jobs)


def _print_stages(found: Mapping[str, JobEstimate]) -> None:
    """Print the memory of each pipeline stage."""
    layouts: dict[str, list[str]] = {}
    for name, each in found.items():
        if len(each.stages_gb) > 1:
            layouts.setdefault(" ".join(f"{memory:.0f}" for memory in each.stages_gb), []).append(name)
    for stages, names in list(layouts.items())[:_MOST_VALUES]:
        console().print(f"GB on a GPU of each pipeline stage: {stages} ({_jobs(names)})")
    if len(layouts) > _MOST_VALUES:
        console().print(f"… {len(layouts) - _MOST_VALUES} more in plan --format json")


def _by_reason(missing: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in missing.items():
        reasons.setdefault(reason, []).append(name)
    return reasons


def _jobs(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} jobs, {names[0]} the first"


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _axes_table(found: Mapping[str, Sequence[object]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("axis")
    table.add_column("values", overflow="fold")
    for name, values in found.items():
        shown = ", ".join(format_value(value) for value in values[:_MOST_VALUES])
        table.add_row(name, shown + (f", … ({len(values)} values)" if len(values) > _MOST_VALUES else ""))
    return table


def _stage_table(stages: Sequence[StageOverview]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("kind", overflow="fold")
    table.add_column("jobs", justify="right")
    table.add_column("starts after", overflow="fold")
    bounds = [stage.gpu_hours for stage in stages]
    with_gpus = any(bound.hours or bound.unbounded for bound in bounds)
    if with_gpus:
        table.add_column("GPU-hours", justify="right", no_wrap=True)
    for stage, guide, hours in zip(stages, _guides(stages), bounds, strict=True):
        starts_and_ends = [stage.starts]
        starts_and_ends += [f"cancelled by: {stage.cancel}"] if stage.cancel else []
        starts_and_ends += [f"finished by: {stage.finish}"] if stage.finish else []
        starts_and_ends += [f"on {event}" for event in stage.events]
        table.add_row(
            guide + stage.label,
            stage.kind,
            str(len(stage.jobs)),
            "\n".join(starts_and_ends),
            *([str(hours) if hours.hours or hours.unbounded else "–"] if with_gpus else []),
        )
    return table


def _guides(stages: Sequence[StageOverview]) -> list[str]:
    """Return the tree lines that connect each stage to its parent."""
    last: dict[str | None, str] = {stage.instance.parent: stage.instance.name for stage in stages}
    below: dict[str, str] = {}
    guides = []
    for stage in stages:
        parent, name = stage.instance.parent, stage.instance.name
        if parent is None:
            guides.append("")
            below[name] = ""
        else:
            is_last = last[parent] == name
            guides.append(below[parent] + ("└─ " if is_last else "├─ "))
            below[name] = below[parent] + ("   " if is_last else "│  ")
    return guides


def _points_table(plan: Plan, found: Mapping[str, Sequence[object]], most_points: int) -> Table:
    """Return the values of the first points, without axes that have a single value, or one for each of its stages."""
    values: dict[str, dict[str, object]] = {point: {} for point in plan.points}
    of_stages: dict[tuple[str, str], object] = {}
    between_stages: set[str] = set()
    between_points: set[str] = set()
    for job in plan.jobs:
        own = values.get(job.point, {})
        for name, value in swept_values(job).items():
            if own.setdefault(name, value) != value:
                between_stages.add(name)
            if of_stages.setdefault((job.stage, name), value) != value:
                between_points.add(name)
    left_out = between_stages - between_points
    varying = [name for name, each in found.items() if len(each) > 1 and name not in left_out]
    counts = Counter(job.point for job in plan.jobs)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("point", overflow="fold")
    wide = len(varying) > _MOST_COLUMNS
    for name in ["swept"] if wide else varying:
        table.add_column(name, overflow="fold")
    table.add_column("jobs", justify="right")
    for point in plan.points[:most_points]:
        own = values[point]
        cells = [format_value(own.get(name)) for name in varying]
        if wide:
            cells = [" ".join(f"{name}={cell}" for name, cell in zip(varying, cells, strict=True))]
        table.add_row(point, *cells, str(counts[point]))
    if len(plan.points) > most_points:
        table.add_row(f"… {len(plan.points) - most_points} more")
    return table


def _jobs_table(stages: Sequence[StageOverview], most_points: int) -> Table:
    """Return the names of the first jobs of each stage, with start conditions that the tree does not show."""
    rows: list[tuple[str, str]] = []
    for stage in stages:
        for job in stage.jobs[:most_points]:
            own = waits_for(job)
            rows.append((short_name(job), "" if own == stage.starts else shortened(own, _MOST_TEXT)))
        more = len(stage.jobs) - most_points
        if more > 0:
            rows.append((f"{stage.instance.name}: … {more} more", ""))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("job", overflow="fold")
    waits = any(own for _, own in rows)
    if waits:
        table.add_column("waits for", overflow="fold")
    for name, own in rows:
        table.add_row(name, *([own] if waits else []))
    return table
