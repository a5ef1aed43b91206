"""``airflow-megatron cluster``: the local Slurm cluster."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from airflow_megatron.spec.documents.project import local_dir, project_folder

app = typer.Typer(help="The local Slurm cluster: up, down, status.", no_args_is_help=True)


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
    raise typer.Exit(_local_cluster("up", *words))


@app.command()
def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete its files too: accounting, logs, keys")
    ] = False,
) -> None:
    """Stop the local Slurm cluster and all jobs on it."""
    raise typer.Exit(_local_cluster("down", *(["--purge"] if purge else [])))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object")] = False,
) -> None:
    """Show which daemons of the local Slurm cluster run; exit status 3 when one does not."""
    raise typer.Exit(_local_cluster("status", *(["--json"] if as_json else [])))


def _local_cluster(*words: str) -> int:
    script = project_folder("docker") / "local_cluster"
    return subprocess.run(
        [sys.executable, str(script), *words, "--dir", str(local_dir() / "cluster")], check=False
    ).returncode
