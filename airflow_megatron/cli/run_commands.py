"""The commands that look at a sweep's runs, or run one: status, quickstart, ui."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_megatron.cli.spec_options import (
    ClusterOption,
    SelectOption,
    SetOption,
    SpecArgument,
    checked_plan,
    complete_spec,
    load_spec,
)
from airflow_megatron.cli.status import StatusFormat, print_status


def status(
    spec: SpecArgument,
    output: Annotated[
        StatusFormat, typer.Option("--format", help="table: lines where the output is no terminal")
    ] = StatusFormat.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again until no job changes by itself; Ctrl-C ends it")
    ] = False,
    every: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Between two looks of --watch")] = 15,
    select: SelectOption = "",
    settings: SetOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Show how far every job of a sweep is, from what is on its cluster."""
    plan = checked_plan(load_spec(spec, settings), cluster, select)
    try:
        print_status(plan, output, every if watch else None)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def quickstart(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="The sweep to run", autocompletion=complete_spec)
    ] = "quickstart",
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished jobs again")] = False,
) -> None:
    """Start the local cluster and Airflow, run a sweep, show its results, and stop what was started."""
    from airflow_megatron.cli.quickstart import run_quickstart

    raise typer.Exit(run_quickstart(load_spec(spec), fresh=fresh))


def ui() -> None:
    """Start the local cluster and Airflow, print address and password, and run until interrupted."""
    from airflow_megatron.cli.quickstart import run_ui

    raise typer.Exit(run_ui())
