"""The table of a sweep's evaluations: every value of every evaluated checkpoint, with its standard error."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.readings.evaluations import Measurement, measurements
from airflow_megatron.results.readings.sweep_jobs import format_value, plain_values
from airflow_megatron.results.tables.text import csv_cell, markdown_table
from airflow_megatron.results.tables.trainings import format_count
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.results.readings.snapshot import SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.tables.trainings import ResultTable

_LONGEST_RUN: Final = 200
_FIELDS: Final = tuple(item.name for item in dataclasses.fields(Measurement))


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One value of one checkpoint.

    :param point: name of the point
    :param branch: the training branch, or the run outside the sweep
    :param sweep_params: the swept parameters
    :param iteration: iteration of the checkpoint
    :param tokens: tokens seen by the checkpoint, None if the log does not show them
    :param measurement: the value
    """

    point: str
    branch: str
    sweep_params: Mapping[str, Any]
    iteration: int
    tokens: int | None
    measurement: Measurement


def evaluation_rows(
    table: ResultTable, snapshot: SweepSnapshot, jobs: Iterable[SweepJob]
) -> list[EvaluationRow]:
    """Return every value of a sweep, in the plan's order, a branch's checkpoints oldest first.

    Evaluations of models that the sweep did not train come last.

    :param table: the results of its trainings.
    :param snapshot: the run directories.
    :param jobs: the jobs of the plan.
    """
    jobs = list(jobs)
    trained = {branch.job.run_dir for branch in table.branches}
    rows = [
        EvaluationRow(
            branch.row.point,
            branch.row.branch,
            branch.row.sweep_params,
            iteration,
            branch.tokens_at(iteration),
            measurement,
        )
        for branch in table.branches
        for iteration, results in sorted(branch.run.evaluations.items())
        for measurement in measurements(results)
    ]
    evaluations = [job for job in jobs if job.reported_as == "evaluation"]
    others = {job.run_dir: job for job in evaluations if job.run_dir not in trained}
    rows += [
        EvaluationRow(job.point, job.branch, job.sweep_params, iteration, None, measurement)
        for job in others.values()
        for iteration, results in sorted(snapshot.run(job.run_dir).evaluations.items())
        for measurement in measurements(results)
    ]
    rows += [
        EvaluationRow(job.point, shown(name)[:_LONGEST_RUN], job.sweep_params, iteration, None, measurement)
        for job in {job.run_dir: job for job in evaluations}.values()
        for name, of_run in sorted(snapshot.run(job.run_dir).of_runs.items())
        for iteration, results in sorted(of_run.items())
        for measurement in measurements(results)
    ]
    return rows


def to_csv(rows: Sequence[EvaluationRow]) -> str:
    """Return CSV with one line per value: point, branch, ``param:<name>``, checkpoint, the fields of a measurement."""
    names = list(dict.fromkeys(name for row in rows for name in row.sweep_params))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["point", "branch", *(f"param:{name}" for name in names), "iteration", "tokens", *_FIELDS]
    )
    for row in rows:
        swept = [format_value(row.sweep_params.get(name)) for name in names]
        figures = [getattr(row.measurement, field) for field in _FIELDS]
        cells = [row.point, row.branch, *swept, row.iteration, row.tokens, *figures]
        writer.writerow([csv_cell(cell) for cell in cells])
    return out.getvalue()


def to_json(rows: Sequence[EvaluationRow]) -> str:
    """Return a JSON list with one object per value."""
    rows_as_json = [
        {
            "point": row.point,
            "branch": row.branch,
            "sweep_params": plain_values(row.sweep_params),
            "iteration": row.iteration,
            "tokens": row.tokens,
            **dataclasses.asdict(row.measurement),
        }
        for row in rows
    ]
    return json.dumps(rows_as_json, indent=2, default=str) + "\n"


def to_markdown(rows: Sequence[EvaluationRow]) -> str:
    """Return :func:`display_table` as Markdown."""
    return markdown_table(display_table(rows))


def display_table(rows: Sequence[EvaluationRow]) -> list[list[str]]:
    """Return headings and one line per checkpoint, a column per task, metric and number of examples: ``0.4312 ±0.011``.

    :param rows: at least one.
    """
    columns = sorted({_column(row.measurement) for row in rows})
    lines: dict[tuple[str, str, int, int | None], dict[tuple[str, int], str]] = {}
    for row in rows:
        measurement, place = row.measurement, (row.point, row.branch, row.iteration, row.tokens)
        error = f" ±{measurement.stderr:.2g}" if measurement.stderr else ""
        lines.setdefault(place, {})[_column(measurement)] = f"{measurement.value:.4g}{error}"
    heads = [f"{name} ({shots}-shot)" if shots else name for name, shots in columns]
    return [
        ["point", "branch", "iteration", "tokens", *heads],
        *(
            [point, branch, str(iteration), format_count(tokens), *(cells.get(key, "–") for key in columns)]
            for (point, branch, iteration, tokens), cells in lines.items()
        ),
    ]


def _column(measurement: Measurement) -> tuple[str, int]:
    """Return the value's column: a sweep may vary the number of examples."""
    return measurement.name, measurement.num_fewshot or 0
