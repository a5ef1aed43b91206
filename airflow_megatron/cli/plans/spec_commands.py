"""The commands for sweep specs: ``lint``, ``plan``, ``diff``, ``schema``."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_megatron.cli.console.verbosity import says_warnings
from airflow_megatron.cli.plans.spec_options import (
    ClusterOption,
    SelectOption,
    SetOption,
    SpecArgument,
    checked_plan,
    checked_plans,
    complete_spec,
    load_own_spec,
    load_spec,
    printed_plan,
)
from airflow_megatron.plan.difference import plan_difference
from airflow_megatron.plan.job_names import short_name
from airflow_megatron.plan.overview import stage_overviews
from airflow_megatron.plan.repeated_names import repeated_name_problem
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.spec_files import lone_sidecars

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.model.sweep import Sweep


class LintFormat(StrEnum):
    """Output format of ``lint``."""

    TEXT = "text"
    JSON = "json"


class PlanFormat(StrEnum):
    """Output format of ``plan``."""

    TABLE = "table"
    JSON = "json"
    MERMAID = "mermaid"
    NAMES = "names"


class DiffFormat(StrEnum):
    """Output format of ``diff``."""

    TABLE = "table"
    JSON = "json"


def lint(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC…", help="Spec files", autocompletion=complete_spec)
    ],
    output: Annotated[
        LintFormat, typer.Option("--format", help="Output format; json: one list of problems, for editors")
    ] = LintFormat.TEXT,
    settings: SetOption = None,
    cluster: ClusterOption = None,
    with_dags: Annotated[
        bool, typer.Option("--build-dags", help="Also build the DAGs, as Airflow does; this takes seconds")
    ] = False,
) -> None:
    """Check sweep specs; report each error with its line and a hint. The exit status is 1 if there are errors."""
    report: list[dict[str, Any]] = []
    wrong = False
    for spec in specs:
        lines: list[str] = []
        sweep: Sweep | None = None
        try:
            sweep = load_spec(spec, settings)
            plans = _checked(sweep, cluster, with_dags=with_dags)
        except SpecError as error:
            wrong = True
            report += _rows(error.problems, "error")
            lines = [str(problem) for problem in error.problems]
            if sweep is not None and says_warnings():  # one of them may name the cause
                with suppress(SpecError):
                    warnings = sorted({*sweep.warnings()} - {*error.problems})
                    report += _rows(warnings, "warning")
                    lines += [problem.with_severity("warning") for problem in warnings]
        else:
            if says_warnings():
                given = [problem for plan in plans for problem in plan.warnings]
                warnings = list(dict.fromkeys([*given, *lone_sidecars(Path(sweep.document.file).parent)]))
                report += _rows(warnings, "warning")
                lines = [problem.with_severity("warning") for problem in warnings]
                for planned in plans:
                    counts = (
                        f"{counted(len(planned.points), 'point')}, "
                        f"{counted(len(planned.jobs), 'job')}, digest {planned.digest}"
                    )
                    lines.append(f"{spec}: {counts}" + (f", on {planned.cluster}" if len(plans) > 1 else ""))
        if output is LintFormat.TEXT and lines:
            print("\n".join(lines))
    if output is LintFormat.JSON:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    if wrong:
        raise typer.Exit(1)


def _checked(sweep: Sweep, cluster: str | None, *, with_dags: bool) -> list[Plan]:
    """Return the checked plans of a sweep; a copied spec that still has its old name gets its other errors too."""
    taken = repeated_name_problem(sweep)
    try:
        plans = checked_plans(sweep, cluster, warn=False)
        if with_dags and taken is None:
            check_dags(sweep)
    except SpecError as error:
        raise error if taken is None else SpecError([taken, *error.problems]) from None
    if taken is not None:
        raise SpecError(taken)
    return plans


def check_dags(sweep: Sweep) -> None:
    """Build the DAGs of a sweep, as Airflow does.

    :raises SpecError: if Airflow refuses them
    """
    from airflow_megatron.dag_factory.building import build_dags  # importing Airflow takes seconds
    from airflow_megatron.spec.model.outline import SweepOutline

    build_dags(SweepOutline.of(sweep))


def plan(
    spec: SpecArgument,
    output: Annotated[
        PlanFormat, typer.Option("--format", help="Output format; names: the name of every job")
    ] = PlanFormat.TABLE,
    most_points: Annotated[
        int,
        typer.Option(
            "--max-points-per-stage",
            min=0,
            metavar="N",
            help="Maximum number of points listed for each stage; 0 for none",
        ),
    ] = 4,
    select: SelectOption = "",
    settings: SetOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Show the stage tree of a sweep: jobs, axes, start and cancel conditions, maximum GPU-hours."""
    sweep = load_own_spec(spec, settings)
    if output is PlanFormat.JSON:
        text = printed_plan(sweep, cluster, select).json_text()
        sys.stdout.flush()
        sys.stdout.buffer.writelines(text)
        return
    plans = checked_plans(sweep, cluster, select)
    planned = plans[0]  # names and stages do not depend on the cluster
    if output is PlanFormat.NAMES:
        sys.stdout.writelines(f"{short_name(job)}\n" for job in planned.jobs)
        return
    stages = stage_overviews(planned, sweep.tree)
    if output is PlanFormat.MERMAID:
        from airflow_megatron.cli.plans.plan_mermaid import mermaid

        print(mermaid(stages))
    else:
        from airflow_megatron.cli.plans.plan_table import print_plan

        for planned, profile in zip(plans, sweep_clusters(sweep, cluster), strict=True):
            print_plan(planned, stage_overviews(planned, sweep.tree), most_points, profile.billing)


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The old spec", autocompletion=complete_spec)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new spec", autocompletion=complete_spec)],
    output: Annotated[DiffFormat, typer.Option("--format", help="Output format")] = DiffFormat.TABLE,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of NEW; may be repeated"),
    ] = None,
    select: SelectOption = "",
    cluster: ClusterOption = None,
) -> None:
    """Show which points are added and removed between two specs, and which parameters change."""
    before, after = load_spec(old), load_spec(new, settings)
    plans = (
        checked_plan(before, cluster, select, beside=after),
        checked_plan(after, cluster, select, beside=before),
    )
    difference = plan_difference(*plans)
    if output is DiffFormat.JSON:
        print(json.dumps(difference.to_json(), indent=2))
        return
    from airflow_megatron.cli.plans.difference_table import print_difference

    print_difference(*plans, difference)


def schema() -> None:
    """Print the JSON Schema of sweep specs, for editors."""
    from airflow_megatron.spec.native.json_schema import sweep_spec_schema_text

    sys.stdout.write(sweep_spec_schema_text())


def _rows(problems: Iterable[Problem], severity: str) -> list[dict[str, Any]]:
    return [
        {
            "file": problem.file,
            "line": problem.line,
            "column": problem.column,
            "severity": severity,
            "message": problem.message,
            "hint": problem.hint,
        }
        for problem in problems
    ]
