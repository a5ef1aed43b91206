"""``airflow-megatron cluster``: control the local Slurm cluster; install the programs of jobs; check a cluster."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads it)
from typing import Annotated

import typer

from airflow_megatron.cli.local.local_cluster import run_local_cluster
from airflow_megatron.cli.local.local_connection import cluster_description, connection_command


def _complete_profile(incomplete: str) -> list[str]:
    from airflow_megatron.spec.model.cluster_profile import cluster_names

    return [name for name in cluster_names() if name.startswith(incomplete)]


ProfileArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Cluster profile", autocompletion=_complete_profile)
]

app = typer.Typer(
    help="Control the local Slurm cluster (up, down, status); install on any cluster what its jobs need (install), "
    "check it (check), and limit what an SSH key may do there (restrict).",
    no_args_is_help=True,
)


@app.command()
def up(
    nodes: Annotated[int | None, typer.Option(help="Number of nodes", show_default="at first 4")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs of each node", show_default="at first 4")
    ] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(help="CPUs that each node reports to Slurm", show_default="at first 4")
    ] = None,
    memory_mb: Annotated[
        int | None,
        typer.Option(help="Memory that each node reports to Slurm, in MiB", show_default="at first 32768"),
    ] = None,
) -> None:
    """Start the local Slurm cluster; later starts use the same size."""
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
        bool, typer.Option("--purge", help="Also delete its files: accounting, logs, keys")
    ] = False,
) -> None:
    """Stop the local Slurm cluster and all its jobs."""
    raise typer.Exit(run_local_cluster("down", *(["--purge"] if purge else [])))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
) -> None:
    """Show which daemons of the local Slurm cluster run. The exit status is 3 if one does not."""
    raise typer.Exit(run_local_cluster("status", *(["--json"] if as_json else [])))


@app.command()
def install(
    name: ProfileArgument,
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
            "--python", help="Interpreter on the cluster, 3.11 or newer, that creates the environment"
        ),
    ] = "python3",
    index_url: Annotated[
        str | None,
        typer.Option("--index-url", help="Package index with the build of torch for the cluster's GPUs"),
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
            "--wheels",
            metavar="DIR",
            help="With --offline: use the wheels in this folder instead of downloading",
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove versions that were replaced more than 30 days ago")
    ] = False,
) -> None:
    """Install the programs of jobs, their environment and upstream Megatron-LM at the paths of a cluster's profile.

    Installed parts are kept. New parts are written completely and then activated by one rename.
    """
    from airflow_megatron.cli.setup.cluster_install import PARTS, InstallationChoice, install_on

    wrong = [part for part in only or () if part not in PARTS]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is none of {', '.join(PARTS)}", param_hint="--only")
    if wheels is not None and not offline:
        raise typer.BadParameter("--wheels requires --offline", param_hint="--wheels")
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


@app.command()
def restrict(
    name: ProfileArgument,
    public_key: Annotated[
        Path, typer.Option("--public-key", metavar="FILE", help="Public half of the key to restrict")
    ],
    connection: Annotated[
        str | None,
        typer.Option(
            "--connection",
            metavar="ID",
            help="Airflow connection for the installation, if that of the profile is already restricted",
        ),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option("--root", metavar="DIR", help="Folder beside the run root; may be repeated"),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Permit only the programs that change nothing")
    ] = False,
) -> None:
    """Install on a cluster the programs of a restricted key, and print the key's line of authorized_keys.

    The key can then run these programs and nothing else. Repeat this after an upgrade of airflow-megatron.
    """
    from airflow_megatron.cli.setup.restricted_key import restrict_key

    raise typer.Exit(
        restrict_key(name, public_key, conn_id=connection, roots=root or (), read_only=read_only)
    )


@app.command()
def check(
    name: ProfileArgument,
    job: Annotated[bool, typer.Option("--job/--no-job", help="Also run a job of some seconds")] = True,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for the job", min=1)] = 300,
    output: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text or json", show_default=True)
    ] = "text",
) -> None:
    """Check that a cluster agrees with its profile: connection, Slurm, partitions, run root, and a job's Python.

    The job uses the profile's defaults and one node. The exit status is 1 if a check fails.
    """
    from airflow_megatron.cli.setup.cluster_check import check_cluster

    if output not in ("text", "json"):
        raise typer.BadParameter(f"{output!r} is none of text, json", param_hint="--format")
    raise typer.Exit(check_cluster(name, with_job=job, patience_s=wait, as_json=output == "json"))
