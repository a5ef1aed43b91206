"""``airflow-megatron fit``: fit optima and scaling laws to the losses of a run."""

from __future__ import annotations

import json
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from airflow_megatron.cli.plans.spec_options import ClusterOption, SpecArgument, load_spec
from airflow_megatron.results.fits.kinds import FitKind, ParameterCount
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from airflow_megatron.results.fits.sweep_fits import SweepFits
    from airflow_megatron.spec.model.sweep import Sweep


_DRAFTS: Final = 4
"""Maximum number of times that a draft is planned: a batch that changes D changes the batch again, less each time."""


class FitFormat(StrEnum):
    """Output format."""

    TABLE = "table"
    JSON = "json"


def fit(
    spec: SpecArgument,
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Id of the sweep's run; default: the newest")
    ] = "",
    kinds: Annotated[
        list[FitKind] | None, typer.Option("--kind", help="Kind of fit; repeat for several; default: all")
    ] = None,
    output: Annotated[FitFormat, typer.Option("--format", help="Output format")] = FitFormat.TABLE,
    parameters: Annotated[
        ParameterCount, typer.Option("--parameters", help="Which parameters are N")
    ] = ParameterCount.UNPADDED,
    scale: Annotated[
        float, typer.Option("--scale", min=1, help="Predicted size, as a multiple of the largest")
    ] = 4.0,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE", help="Write a spec for the predicted size, checked as by lint"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Permit --export to replace a file")] = False,
    cluster: ClusterOption = None,
) -> None:
    """Fit the best learning rate and batch, and the laws of the loss, to the final losses of a run.

    Each estimate has its 95 % interval; fits that the runs do not determine are refused with the reason.
    """
    from airflow_megatron.cli.runs.report import run_table
    from airflow_megatron.plan.pins.pin_store import PinError
    from airflow_megatron.results.fits.refusals import FitRefusedError, missing_for_fits
    from airflow_megatron.slurm.remote.transport import TransportError

    if missing := missing_for_fits():
        print(missing, file=sys.stderr)
        raise typer.Exit(1)
    from airflow_megatron.results.fits.sweep_fits import KINDS, fit_sweep
    from airflow_megatron.results.fits.sweep_runs import sweep_runs

    sweep = load_spec(spec)
    if export is not None:
        _check_target(export, sweep, overwrite=overwrite)
    try:
        fits = fit_sweep(
            sweep_runs(run_table(sweep, run, cluster)),
            counts=parameters.value,
            kinds=[kind.value for kind in kinds or ()] or KINDS,
            scale=scale,
        )
        _print(fits, output)
        if export is not None:
            _export(sweep, fits, scale, export, cluster)
    except (PinError, TransportError, FitRefusedError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None


def _print(fits: SweepFits, output: FitFormat) -> None:
    from airflow_megatron.results.fits.sweep_fits import display_tables, to_json
    from airflow_megatron.results.tables.text import aligned_text

    if output is FitFormat.JSON:
        print(json.dumps(to_json(fits), indent=2, ensure_ascii=False))
        return
    print(f"N: {fits.counts} parameters; {fits.loss} loss; in brackets: 95 % intervals")
    for reason in fits.left_out:
        print(f"left out: {reason}")
    for title, note, lines in display_tables(fits):
        print(f"\n{title}: {note}")
        print(aligned_text(lines), end="")


def _check_target(path: Path, sweep: Sweep, *, overwrite: bool) -> None:
    """Refuse a file that cannot or must not be written, before any remote command."""
    problem = ""
    if path.is_dir() or not path.parent.is_dir():
        problem = "is not a file in an existing folder"
    elif path.exists() and path.samefile(sweep.document.file):
        problem = "is the sweep's own spec: choose another file"
    elif path.exists() and not overwrite:
        problem = "exists already: choose another file, or add --overwrite"
    if problem:
        print(f"--export: {path} {problem}", file=sys.stderr)
        raise typer.Exit(1)


def _export(sweep: Sweep, fits: SweepFits, scale: float, path: Path, cluster: str | None) -> None:
    """Write the next spec after a draft of it, a hidden file beside it, has passed the checks.

    The learning rate and batch of the draft are those for N and D of the draft's own jobs.
    """
    from airflow_megatron.cli.plans.spec_options import checked_plan
    from airflow_megatron.results.fits.next_spec import next_spec, planned_size
    from airflow_megatron.results.readings.plan_rows import sweep_jobs
    from airflow_megatron.results.report.atomic_files import write_atomically

    at = None
    with tempfile.NamedTemporaryFile(prefix=f".{path.stem}-", suffix=".yaml", dir=path.parent) as file:
        draft = Path(file.name)
        for _ in range(_DRAFTS):
            draft.write_text(next_spec(sweep.name, sweep.document, fits, scale, draft, at), encoding="utf-8")
            plan = checked_plan(load_spec(str(draft)), cluster)
            planned = planned_size(sweep_jobs(plan.jobs), fits, scale)
            if planned is None or planned == at:
                break
            at = planned
    write_atomically(path, next_spec(sweep.name, sweep.document, fits, scale, path, at))
    print(f"wrote {path}: {counted(len(plan.jobs), 'job')}, no errors", file=sys.stderr)
