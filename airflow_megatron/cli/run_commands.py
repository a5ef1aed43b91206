"""The commands that look at a sweep's runs, or run one: status, quickstart, ui."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_megatron.cli.spec_options import (
    ClusterOption,
    SelectOption,
    SpecArgument,
    checked_plan,
    complete_spec,
    load_spec,
)


def status(spec: SpecArgument, select: SelectOption = "", cluster: ClusterOption = None) -> None:
    """Show how far every job of a sweep is, from what is on its cluster."""
    from airflow_megatron.cli.status import print_status

    print_status(checked_plan(load_spec(spec), cluster, select))


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
