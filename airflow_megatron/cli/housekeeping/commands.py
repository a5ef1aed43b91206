"""The commands ``archive`` and ``delete`` for the data of sweeps."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_megatron.cli.plans.spec_options import ClusterOption, SelectOption, complete_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

SweepArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP",
        help="A spec, or the name of a sweep whose spec no longer exists",
        autocompletion=complete_spec,
    ),
]


def delete(
    sweep: SweepArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete the data; without this option, only list it")
    ] = False,
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Delete only the records of this run; keep the folders, which all runs share",
        ),
    ] = "",
    select: SelectOption = "",
    cluster: ClusterOption = None,
) -> None:
    """Delete the data of a sweep: folders on the cluster, reports, stored plans, runs in Airflow's database."""
    if run and select.strip():
        print(
            "--run and --select cannot be combined, because runs share the folders of points", file=sys.stderr
        )
        raise typer.Exit(2)
    from airflow_megatron.cli.housekeeping.delete import delete as delete_remains
    from airflow_megatron.cli.housekeeping.delete import refuse_under_way, what_is_there
    from airflow_megatron.cli.housekeeping.remains import remaining_sweep, remains_of

    with _reported():
        remains = remains_of(remaining_sweep(sweep), select, run, cluster)
        refuse_under_way(remains)
        if yes:
            is_empty = True
            for line in delete_remains(remains):
                is_empty = False
                print(line, flush=True)
            if is_empty:
                print(f"{remains.sweep} has no data")
            return
        lines = list(what_is_there(remains))
        for line in lines:
            print(line if _is_kept(line) else f"would delete {line}")
        if not all(map(_is_kept, lines)):
            print("nothing was deleted; --yes deletes it")
        else:
            print(f"{remains.sweep} has no data")


def _is_kept(line: str) -> bool:
    return line.startswith("left alone")


def archive(
    sweep: SweepArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="PATH", help="Absolute path of the archive on the cluster, .tar.gz or .tar.zst"
        ),
    ] = "",
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Include checkpoints and converted models")
    ] = False,
    select: SelectOption = "",
    cluster: ClusterOption = None,
) -> None:
    """Write records, logs, results, reports and plans of a sweep to one file on its cluster."""
    from airflow_megatron.cli.housekeeping.archive import archives
    from airflow_megatron.cli.housekeeping.remains import remaining_sweep, remains_of

    with _reported():
        remains = remains_of(remaining_sweep(sweep), select, cluster=cluster)
        for written in archives(remains, to=to, checkpoints=checkpoints):
            print(f"wrote {written.path}, {written.bytes / 2**20:.1f} MiB", flush=True)


@contextmanager
def _reported() -> Iterator[None]:
    """Print an expected error without a traceback, and exit with status 1."""
    from airflow_megatron.cli.housekeeping.remains import HousekeepingError
    from airflow_megatron.plan.pins.pin_store import PinError
    from airflow_megatron.slurm.remote.run_archive import ArchiveError
    from airflow_megatron.slurm.remote.transport import TransportError

    try:
        yield
    except (ArchiveError, HousekeepingError, PinError, TransportError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
