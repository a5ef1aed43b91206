"""``airflow-megatron checkpoints``: which checkpoints of a folder can be loaded, and why."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_megatron.megatron.checkpoint_folder import read_checkpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.checkpoints import Checkpoint


class CheckpointsFormat(StrEnum):
    """How checkpoints are printed."""

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
        Path, typer.Argument(metavar="DIR", help="Megatron's --save directory, or one iter_* in it")
    ],
    output: Annotated[
        CheckpointsFormat, typer.Option("--format", help="How to print them")
    ] = CheckpointsFormat.TABLE,
) -> None:
    """Say of every checkpoint in a directory whether it is complete, incomplete, or unverifiable."""
    try:
        rows = checkpoint_rows(read_checkpoints(directory))
    except OSError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    if output is CheckpointsFormat.JSON:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(f"{row['iteration']:>10}  {row['format']:<12}  {row['verdict']:<12}  {row['reason']}")
    if not rows:
        print(f"{directory}: no iter_* directory")
