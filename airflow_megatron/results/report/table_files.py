"""The files of a report's tables: CSV, JSON, Markdown, LaTeX and Parquet."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.tables import evaluation_rows as evaluation_table
from airflow_megatron.results.tables.latex import latex_table
from airflow_megatron.results.tables.trainings import (
    display_columns,
    display_rows,
    to_csv,
    to_json,
    to_markdown,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.results.fits.sweep_fits import SweepFits
    from airflow_megatron.results.tables.evaluation_rows import EvaluationRow
    from airflow_megatron.results.tables.trainings import ResultTable


def result_files(table: ResultTable) -> dict[str, str | bytes]:
    """Return the files of the table of trainings: name → content."""
    csv = to_csv(table)
    lines = [display_columns(table), *display_rows(table)]
    return {
        "results.csv": csv,
        "results.json": to_json(table),
        "results.md": to_markdown(table),
        "results.tex": latex_table(lines, caption="Results", label="results"),
        "results.parquet": parquet(csv),
    }


def evaluation_files(evaluations: Sequence[EvaluationRow]) -> dict[str, str | bytes]:
    """Return the files of the table of evaluations: name → content.

    :param evaluations: at least one
    """
    csv = evaluation_table.to_csv(evaluations)
    lines = evaluation_table.display_table(evaluations)
    return {
        "evaluations.csv": csv,
        "evaluations.json": evaluation_table.to_json(evaluations),
        "evaluations.md": evaluation_table.to_markdown(evaluations),
        "evaluations.tex": latex_table(lines, caption="Evaluations", label="evaluations"),
        "evaluations.parquet": parquet(csv),
    }


def fit_files(fits: SweepFits) -> dict[str, str | bytes]:
    """Return the files of the fits: name → content."""
    from airflow_megatron.results.fits.sweep_fits import display_tables
    from airflow_megatron.results.fits.sweep_fits import to_json as fits_json

    tables = [
        latex_table(lines, caption=f"{title}. {note} In brackets: 95 % intervals.", label=f"fits-{number}")
        for number, (title, note, lines) in enumerate(display_tables(fits), 1)
    ]
    return {
        "fits.json": json.dumps(fits_json(fits), indent=2, ensure_ascii=False) + "\n",
        "fits.tex": "\n".join(tables),
    }


_TEXTS: Final = frozenset(
    ("branch", "stage", "kind", "job_id", "signature", "nodes", "reason", "state", "outcome", "task")
)
"""Columns that are text regardless of their values."""


def parquet(csv: str) -> bytes:
    """Return a table in CSV as Parquet; a column of numbers, or of true and false, becomes one of that type.

    If a whole number is too large for Parquet, all columns are text.
    """
    import polars as pl  # its import is slow

    first = csv[: csv.index("\n")].split(",")[0]
    texts = dict.fromkeys((first, *sorted(_TEXTS)), pl.String)
    content = csv.encode()
    try:
        frame = pl.read_csv(io.BytesIO(content), infer_schema_length=None, schema_overrides=texts)
    except pl.exceptions.ComputeError:  # a whole number has more than 128 bits
        frame = pl.read_csv(io.BytesIO(content), infer_schema=False)
    # the CSV file has a prefix that prevents spreadsheets from evaluating such cells
    whole = pl.col(pl.String).str.replace("^'([=+@\t\r-])", "$1")
    return _parquet(frame.with_columns(whole))


def curves_parquet(table: ResultTable) -> bytes | None:
    """Return the logged iterations of every training, without repeated ones, as Parquet; None if there are none.

    Columns: ``point``, ``branch``, ``iteration``, ``tokens``, ``loss`` (nats per token), ``learning_rate``,
    ``grad_norm``, ``throughput`` (TFLOP/s per GPU), ``elapsed_ms``.
    """
    import polars as pl  # its import is slow

    names = ("loss", "learning_rate", "grad_norm", "throughput", "elapsed_ms")
    columns: dict[str, list[Any]] = {name: [] for name in ("point", "branch", "iteration", "tokens", *names)}
    for branch in table.branches:
        per_sample = branch.job.seq_length
        for record in branch.training.iterations:
            columns["point"].append(branch.row.point)
            columns["branch"].append(branch.row.branch)
            columns["iteration"].append(record.iteration)
            columns["tokens"].append(record.consumed_samples * per_sample if per_sample else None)
            for name in names:
                columns[name].append(getattr(record, name))
    if not columns["point"]:
        return None
    types: dict[str, Any] = {
        "point": pl.String,
        "branch": pl.String,
        "iteration": pl.Int64,
        "tokens": pl.Int64,
    }
    # not strict: a number that is too large is missing
    return _parquet(pl.DataFrame(columns, schema=types | dict.fromkeys(names, pl.Float64), strict=False))


def _parquet(frame: Any) -> bytes:
    written = io.BytesIO()
    frame.write_parquet(written)
    return written.getvalue()
