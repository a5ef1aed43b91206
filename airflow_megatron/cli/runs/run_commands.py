"""The commands for runs of a sweep: ``status``, ``cancel``, ``report``, ``quickstart``, ``ui``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_megatron.cli.plans.spec_options import (
    ClusterOption,
    SelectOption,
    SetOption,
    SpecArgument,
    checked_plans,
    complete_spec,
    load_spec,
    placed_sweep,
    spec_path,
)
from airflow_megatron.cli.runs.status import StatusFormat, print_status
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.project import SWEEP_SPECS_VARIABLE, sweep_specs_dir
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.spec_files import spec_files

if TYPE_CHECKING:
    from pathlib import Path


def status(
    spec: SpecArgument,
    output: Annotated[
        StatusFormat,
        typer.Option(
            "--format", help="Output format; table prints plain lines if the output is not a terminal"
        ),
    ] = StatusFormat.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat until all jobs have ended; Ctrl-C stops")
    ] = False,
    every: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Interval of --watch")] = 15,
    select: SelectOption = "",
    settings: SetOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Show the progress of every job of a sweep, from the files and the queue of its cluster."""
    from airflow_megatron.cli.plans.known_sweep import known_sweep

    sweep = load_spec(spec, settings) if settings else known_sweep(spec)
    plan = placed_sweep(sweep, checked_plans(sweep, cluster, select))
    try:
        print_status(plan, output, every if watch else None)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def cancel(spec: SpecArgument, select: SelectOption = "", cluster: ClusterOption = None) -> None:
    """Stop a sweep, or the selected points: cancel its jobs in Slurm, and mark its runs failed in Airflow."""
    from airflow_megatron.cli.plans.known_sweep import known_sweep
    from airflow_megatron.cli.runs.cancel import cancel_jobs, jobs_to_cancel, stop_in_airflow
    from airflow_megatron.plan.point_choice import choose_points
    from airflow_megatron.plan.sweep_cluster import sweep_clusters
    from airflow_megatron.plan.sweep_plan import plan_sweep
    from airflow_megatron.slurm.remote.transport import TransportError

    sweep = known_sweep(spec)
    points = {point.name for point in choose_points(sweep, select)} if select.strip() else None
    # report an invalid selection before anything is stopped
    plan = placed_sweep(sweep, [plan_sweep(sweep, one) for one in sweep_clusters(sweep, cluster)])
    stopped = stop_in_airflow(sweep.name, points)
    for run in stopped or ():
        print(f"stopped {run}")
    try:
        cancelled = cancel_jobs(jobs_to_cancel(plan, points))
    except TransportError as error:
        print(
            f"not all jobs of {sweep.name} were cancelled: {error}; fix this and run the command again",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None
    for name in cancelled:
        print(f"cancelled {name}")
    print(f"{counted(len(stopped or ()), 'run')} stopped, {counted(len(cancelled), 'job')} cancelled")
    if stopped is None:
        print(
            f"Airflow's runs of {sweep.name} were not stopped, and submit what comes next: mark them failed in "
            "Airflow, or run this command where Airflow runs",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def report(
    spec: SpecArgument,
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Id of the sweep's run; default: the newest")
    ] = "",
    cluster: ClusterOption = None,
) -> None:
    """Write the report of a run from the files on its cluster; if nothing has run, the report of the spec."""
    from airflow_megatron.cli.plans.known_sweep import known_sweep
    from airflow_megatron.cli.runs.report import run_report
    from airflow_megatron.plan.pins.pin_store import PinError
    from airflow_megatron.slurm.remote.transport import TransportError

    try:
        written = run_report(known_sweep(spec), run, cluster)
    except (PinError, TransportError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    print(written.text)
    for path in written.paths:
        print(f"wrote {path}")


def quickstart(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="The sweep to run", autocompletion=complete_spec)
    ] = "quickstart",
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished jobs again")] = False,
    settings: SetOption = None,
) -> None:
    """Start the local cluster and Airflow, run a sweep, show its results, and stop both."""
    from airflow_megatron.cli.runs.changed_spec import write_changed_spec
    from airflow_megatron.cli.runs.quickstart import run_quickstart

    if settings:
        changed = write_changed_spec(spec_path(spec), settings)
        os.environ[SWEEP_SPECS_VARIABLE] = str(
            changed.parent
        )  # the folder that the Airflow started here reads
        spec = str(changed)
    sweep = load_spec(spec)
    _expect_airflow_reads(spec_path(spec))
    raise typer.Exit(run_quickstart(sweep, fresh=fresh))


def _expect_airflow_reads(path: Path) -> None:
    """Raise an error if a spec is not one of those that the Airflow started here reads.

    :raises SpecError: it would wait in vain for the DAGs
    """
    folder = sweep_specs_dir()
    if path.resolve() not in {file.resolve() for file in spec_files(folder)}:
        hint = f"move it there, or set {SWEEP_SPECS_VARIABLE}={path.resolve().parent}"
        raise SpecError(Problem(str(path), 0, 0, f"it is not in {folder}, whose sweeps Airflow runs", hint))


def ui() -> None:
    """Start the local cluster and Airflow, print address and password, and run until interrupted."""
    from airflow_megatron.cli.runs.quickstart import run_ui

    raise typer.Exit(run_ui())
