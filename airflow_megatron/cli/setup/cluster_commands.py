"""``airflow-megatron cluster``: the local Slurm cluster, and what jobs need on any cluster."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads it)
from typing import Annotated

import typer

from airflow_megatron.cli.local.local_cluster import run_local_cluster
from airflow_megatron.cli.local.local_connection import cluster_description, connection_command

app = typer.Typer(
    help="The local Slurm cluster: up, down, status; install puts onto any cluster what its jobs need.",
    no_args_is_help=True,
)


@app.command()
def up(
    nodes: Annotated[int | None, typer.Option(help="Number of nodes", show_default="at first 4")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs that each has to give", show_default="at first 4")
    ] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(help="CPUs that each claims to have", show_default="at first 4")
    ] = None,
    memory_mb: Annotated[
        int | None, typer.Option(help="Memory that each claims to have, MiB", show_default="at first 32768")
    ] = None,
) -> None:
    """Start the local Slurm cluster; its size is kept for the next start."""
    sizes = {"nodes": nodes, "gpus-per-node": gpus_per_node}
    sizes |= {"cpus-per-node": cpus_per_node, "memory-mb": memory_mb}
    words = (word for name, value in sizes.items() if value is not None for word in (f"--{name}", str(value)))
    status = run_local_cluster("up", *words)
    if status == 0:
        print(f"Airflow's connection to it: {connection_command(cluster_description())}")
    raise typer.Exit(status)


@app.command()
def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete its files too: accounting, logs, keys")
    ] = False,
) -> None:
    """Stop the local Slurm cluster and all jobs on it."""
    raise typer.Exit(run_local_cluster("down", *(["--purge"] if purge else [])))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object")] = False,
) -> None:
    """Show which daemons of the local Slurm cluster run; exit status 3 when one does not."""
    raise typer.Exit(run_local_cluster("status", *(["--json"] if as_json else [])))


@app.command()
def install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Cluster profile")],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="programs, environment or checkout; may be repeated"),
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option(
            "--release",
            metavar="TAG",
            help="Release of Megatron-LM to check out, instead of all that the profile names; may be repeated",
        ),
    ] = None,
    python: Annotated[
        str,
        typer.Option(
            "--python", help="Interpreter on the cluster, 3.11 or newer, to make the environment with"
        ),
    ] = "python3",
    index_url: Annotated[
        str | None,
        typer.Option("--index-url", help="Package index with the build of torch that fits the GPUs"),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="The cluster has no internet access: send wheels and checkouts over SSH"
        ),
    ] = False,
    wheels: Annotated[
        Path | None,
        typer.Option(
            "--wheels", metavar="DIR", help="With --offline: take the wheels from here, download none"
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove versions that were replaced more than 30 days ago")
    ] = False,
) -> None:
    """Put onto a cluster what its profile says that jobs use: programs, environment, upstream Megatron-LM.

    What is there already stays. What is made anew takes its place complete, by one rename.
    """
    from airflow_megatron.cli.setup.cluster_install import PARTS, InstallationChoice, install_on

    wrong = [part for part in only or () if part not in PARTS]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is none of {', '.join(PARTS)}", param_hint="--only")
    if wheels is not None and not offline:
        raise typer.BadParameter("wheels are sent with --offline only", param_hint="--wheels")
    choice = InstallationChoice(
        parts=only or PARTS,
        releases=release or (),
        python=python,
        offline=offline,
        wheels=wheels,
        pip_arguments=("--index-url", index_url) if index_url else (),
        prune=prune,
    )
    raise typer.Exit(install_on(name, choice))
