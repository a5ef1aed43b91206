"""``airflow-megatron checkpoints``: show which checkpoints can be loaded, with the reason."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_megatron.cli.console.empty_options import not_empty
from airflow_megatron.megatron.checkpoints.completeness import list_checkpoints
from airflow_megatron.megatron.checkpoints.folder import read_checkpoints
from airflow_megatron.slurm.remote.checkpoint_listing import listing_script, parse_listing
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.layout.run_layout import SweepLayout
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.checkpoints.completeness import Checkpoint


class CheckpointsFormat(StrEnum):
    """Output format of the list of checkpoints."""

    TABLE = "table"
    JSON = "json"


def checkpoint_rows(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """Return one JSON object per checkpoint: ``iteration``, ``format``, ``verdict``, ``reason``."""
    return [
        {
            "iteration": checkpoint.iteration,
            "format": checkpoint.verdict.format,
            "verdict": checkpoint.verdict.verdict,
            "reason": checkpoint.verdict.reason,
        }
        for checkpoint in checkpoints
    ]


def checkpoints(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Megatron's --save directory, or one of its iter_*, global_step* or release directories",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Check all runs of this cluster profile, by names and sizes of files",
            callback=not_empty("the checkpoints of a directory"),
        ),
    ] = None,
    sweep: Annotated[str, typer.Option("--sweep", help="With --cluster: check this sweep only")] = "",
    output: Annotated[
        CheckpointsFormat, typer.Option("--format", help="Output format")
    ] = CheckpointsFormat.TABLE,
) -> None:
    """Show for every checkpoint whether it is complete, incomplete, or unverifiable."""
    if (directory is None) == (cluster is None):
        raise typer.BadParameter("give either DIR or --cluster NAME")
    try:
        rows = _runs(cluster, sweep) if cluster else checkpoint_rows(read_checkpoints(Path(directory or "")))
    except (OSError, SpecError, TransportError) as error:
        print("\n".join(map(shown, str(error).split("\n"))), file=sys.stderr)
        raise typer.Exit(1) from None
    if output is CheckpointsFormat.JSON:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        if "run" in row:
            print(f"{shown(row['run'])}  ", end="")
        print(f"{row['iteration']:>10}  {row['format']:<12}  {row['verdict']:<12}  {shown(row['reason'])}")
    if not rows:
        print(f"{directory or cluster}: no iter_*, global_step* or release directory")


def _runs(cluster: str, sweep: str) -> list[dict[str, Any]]:
    """Return a row for each checkpoint of each run of a cluster; use one remote command."""
    from airflow_megatron.cli.runs.login_node import command_line_hook

    profile = load_cluster(cluster)
    folder = SweepLayout.of(profile.run_root, sweep).path.rstrip("/")
    runs = parse_listing(folder, command_line_hook(profile).run(listing_script(folder)))
    return [
        {"run": f"{sweep}/{run.run}" if sweep else run.run, **row}
        for run in runs
        for row in checkpoint_rows(list_checkpoints(run.directories, tracker=run.tracker))
    ]
