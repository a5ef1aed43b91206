"""The command line's entry point and its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from airflow_megatron.planning.plan import Plan, check_sweep, job_script
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.spec.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.project import local_dir, project_root, sweep_specs_dir
from airflow_megatron.spec.sweep import Sweep, load_sweep, spec_files

app = typer.Typer(
    name="airflow-megatron",
    help="Megatron-LM sweeps on Slurm clusters, driven from Apache Airflow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cluster_app = typer.Typer(help="The local Slurm cluster: up, down, status.", no_args_is_help=True)
app.add_typer(cluster_app, name="cluster")

SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A spec file, or the name of one in sweep_specs/")
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Cluster profile instead of the spec's own")
]


class PlanFormat(StrEnum):
    """How a plan is printed."""

    TABLE = "table"
    JSON = "json"


@app.command()
def lint(specs: Annotated[list[str], typer.Argument(metavar="SPEC…", help="Spec files")]) -> None:
    """Check sweep specs; exit 1 and say what is wrong, with line and mend."""
    wrong = 0
    for spec in specs:
        try:
            plan = check_sweep(_load(spec))
        except SpecError as error:
            wrong += 1
            print(error)
        else:
            print(f"{spec}: {len(plan.points)} points, {len(plan.jobs)} jobs, digest {plan.digest}")
    if wrong:
        raise typer.Exit(1)


@app.command()
def plan(
    spec: SpecArgument,
    output: Annotated[PlanFormat, typer.Option("--format", help="How to print it")] = PlanFormat.TABLE,
    cluster: ClusterOption = None,
) -> None:
    """Show every job of a sweep, what it waits for and what it runs."""
    planned = _plan(spec, cluster)
    if output is PlanFormat.JSON:
        print(json.dumps(planned.to_json(), indent=2))
    else:
        _print_plan(planned)


@app.command()
def render(
    spec: SpecArgument,
    job: Annotated[str, typer.Option("--job", help="Name of the job, as the plan shows it")],
    attempt: Annotated[int, typer.Option(min=1, help="Number of the attempt")] = 1,
    cluster: ClusterOption = None,
) -> None:
    """Print the exact sbatch script of a job."""
    planned = _plan(spec, cluster)
    try:
        chosen = planned.job(job)
    except KeyError as error:
        _fail(str(error.args[0]))
    sys.stdout.write(job_script(chosen, load_cluster(planned.cluster), attempt))


@app.command()
def status(spec: SpecArgument, cluster: ClusterOption = None) -> None:
    """Show how far every job of a sweep is, from what is on its cluster."""
    from airflow_megatron.cli.status import print_status

    print_status(_plan(spec, cluster))


@app.command()
def quickstart(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="The sweep to run")] = "quickstart",
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished jobs again")] = False,
) -> None:
    """Start the local cluster and Airflow, run a sweep, show its results, and stop what was started."""
    from airflow_megatron.cli.quickstart import run_quickstart

    raise typer.Exit(run_quickstart(_load(spec), fresh=fresh))


@app.command()
def ui() -> None:
    """Start the local cluster and Airflow, print address and password, and run until interrupted."""
    from airflow_megatron.cli.quickstart import run_ui

    raise typer.Exit(run_ui())


def _local_cluster(*words: str) -> int:
    script = project_root() / "docker" / "local_cluster"
    return subprocess.run(
        [sys.executable, str(script), *words, "--dir", str(local_dir() / "cluster")], check=False
    ).returncode


@cluster_app.command("up")
def cluster_up() -> None:
    """Start the local Slurm cluster."""
    raise typer.Exit(_local_cluster("up"))


@cluster_app.command("down")
def cluster_down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete its files too: accounting, logs, keys")
    ] = False,
) -> None:
    """Stop the local Slurm cluster and all jobs on it."""
    raise typer.Exit(_local_cluster("down", *(["--purge"] if purge else [])))


@cluster_app.command("status")
def cluster_status(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object")] = False,
) -> None:
    """Say what of the local Slurm cluster runs; exit status 3 when not everything does."""
    raise typer.Exit(_local_cluster("status", *(["--json"] if as_json else [])))


def _load(spec: str) -> Sweep:
    path = Path(spec)
    if not path.exists() and "/" not in spec:
        known = {file.stem: file for file in spec_files(sweep_specs_dir())}
        if path.stem in known:
            return load_sweep(known[path.stem])
        mend = did_you_mean(path.stem, known) or f"specs: {', '.join(known) or 'none yet'}"
        raise SpecError(
            Problem(str(sweep_specs_dir() / path.with_suffix(".yaml").name), 0, 0, "no such file", mend)
        )
    return load_sweep(path)


def _plan(spec: str, cluster: str | None) -> Plan:
    sweep = _load(spec)
    return check_sweep(sweep, load_cluster(cluster or sweep.spec.cluster))


def _print_plan(planned: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{planned.sweep} on {planned.cluster}", title_justify="left")
    for heading in ("point", "stage", "swept", "waits for", "run directory"):
        table.add_column(heading, overflow="fold")
    for job in planned.jobs:
        swept = " ".join(f"{name}={job.params[name]}" for name in job.swept if name in job.params)
        waits = ", ".join(f"{item.stage} {item.to_plan()['until']}" for item in job.depends_on)
        table.add_row(job.point or "(sweep)", job.stage, swept, waits or "nothing", job.run_dir)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(
        f"{len(planned.points)} points, {len(planned.jobs)} jobs, digest {planned.digest}", highlight=False
    )


def _fail(message: str) -> None:
    print(message, file=sys.stderr)
    raise typer.Exit(1)


def main() -> None:
    """Run the command line; a wrong spec is told without a traceback."""
    os.environ.setdefault("AIRFLOW_HOME", str(local_dir() / "airflow"))
    try:
        app()
    except SpecError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
