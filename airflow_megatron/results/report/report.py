"""The report of a sweep: table files, plots, and one HTML page that holds all of it."""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_megatron.results.plots.figures import missing_for_plots
from airflow_megatron.results.plots.lr_searches import draw_searches, read_searches, search_table
from airflow_megatron.results.plots.plots import draw_plots
from airflow_megatron.results.readings.progress import ProgressGrid, progress_grid
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.results.report.atomic_files import write_atomically
from airflow_megatron.results.tables import evaluation_rows as evaluation_table
from airflow_megatron.results.tables.benchmarks import benchmark_rows, benchmark_table
from airflow_megatron.results.tables.branch_points import (
    BranchPoint,
    SharedCompute,
    branch_points,
    branches_json,
    display_table,
    shared_compute,
)
from airflow_megatron.results.tables.evaluation_rows import EvaluationRow, evaluation_rows
from airflow_megatron.results.tables.jobs import job_table
from airflow_megatron.results.tables.text import aligned_text
from airflow_megatron.results.tables.trainings import (
    ResultTable,
    display_columns,
    display_rows,
    result_table,
    to_csv,
    to_json,
    to_markdown,
    to_text,
)
from airflow_megatron.results.tables.vocabulary_padding import padding_note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.results.plots.figures import Plot
    from airflow_megatron.results.readings.snapshot import SweepSnapshot
    from airflow_megatron.results.tables.points import PointTable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What was written.

    :param table: the result table
    :param point_tables: of benchmarks and of searches for a learning rate, where the sweep has such stages
    :param branches: where branches left their trunks; empty for a sweep without branches
    :param shared: what they saved, None where nothing was shared
    :param evaluations: every figure of every evaluated checkpoint
    :param grid: the state of every job
    :param tables: the table's files: CSV, JSON, Markdown
    :param plots: the pictures, PNG and SVG
    :param page: the HTML page
    """

    table: ResultTable
    point_tables: tuple[PointTable[Any], ...]
    branches: tuple[BranchPoint, ...]
    shared: SharedCompute | None
    evaluations: tuple[EvaluationRow, ...]
    grid: ProgressGrid
    tables: tuple[Path, ...]
    plots: tuple[Path, ...]
    page: Path

    @property
    def text(self) -> str:
        """The tables as aligned plain text."""
        parts = [to_text(self.table)] if self.table.rows or not self.point_tables else []
        parts += [table.to_text() for table in self.point_tables]
        parts += [aligned_text(display_table(self.branches))] if self.branches else []
        parts += [self.shared.text] if self.shared else []
        parts += list(filter(None, [padding_note(self.table.rows)]))
        return "\n".join(parts)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file of the report."""
        return (*self.tables, *self.plots, self.page)


def write_report(
    snapshot: SweepSnapshot,
    jobs: Iterable[Mapping[str, Any]],
    out_dir: Path | str,
    *,
    title: str = "Sweep results",
    about: Sequence[str] = (),
) -> Report:
    """Write a sweep's results to a directory: of its trainings, and of benchmarks and searches where it has any.

    Each file is put in place complete, the page last; equal results give equal files.

    :param snapshot: the run directories.
    :param jobs: the ``jobs`` of the plan (see :func:`~airflow_megatron.results.readings.sweep_jobs.read_jobs`).
    :param out_dir: the directory, made if need be: ``results.csv``, ``.json``, ``.md``,
        the same of ``benchmark``, ``lr_finder`` and ``evaluations``, ``branches.json``, ``<plot>.png``, ``.svg``,
        ``report.html``.
    :param title: heading of the page, usually the sweep's name.
    :param about: lines under it, in the Markdown files too: what was run, where and when.
    :returns: the files and the table.
    """
    out = Path(out_dir)
    sweep_jobs = read_jobs(jobs)
    table = result_table(snapshot, sweep_jobs)
    evaluations = evaluation_rows(table, snapshot, sweep_jobs)
    benchmarks, searches = benchmark_rows(snapshot, sweep_jobs), read_searches(snapshot, sweep_jobs)
    point_tables: list[PointTable[Any]] = []
    if benchmarks:
        point_tables.append(benchmark_table(benchmarks))
    if searches:
        point_tables.append(search_table(searches))
    grid = progress_grid(snapshot, sweep_jobs)
    if not table.rows and not point_tables and sweep_jobs:
        point_tables.append(job_table(sweep_jobs, grid))
    texts: dict[str, str] = {}
    if table.rows or not point_tables:
        texts |= {
            "results.csv": to_csv(table),
            "results.json": to_json(table),
            "results.md": to_markdown(table),
        }
    for point_table in point_tables:
        texts |= point_table.files()
    branches = branch_points(table)
    shared = shared_compute(table, branches)
    if branches:
        texts["branches.json"] = branches_json(branches, shared)
    if evaluations:
        texts |= {f"evaluations.{kind}": write(evaluations) for kind, write in _EVALUATION_WRITERS.items()}
    if about:
        heading = "".join(f"{line}\n\n" for line in (f"# {title}", *about))
        texts = {name: heading + text if name.endswith(".md") else text for name, text in texts.items()}
    tables = tuple(write_atomically(out / name, text) for name, text in texts.items())
    missing = missing_for_plots()
    if missing:
        log.warning("%s", missing)
    # after the tables: they are there whatever happens here
    plots = [] if missing else [*draw_plots(table), *draw_searches(searches)]
    pictures = []
    for plot in plots:
        pictures.append(write_atomically(out / f"{plot.name}.png", plot.png))
        pictures.append(write_atomically(out / f"{plot.name}.svg", plot.svg))
    report = Report(
        table=table,
        point_tables=tuple(point_tables),
        branches=tuple(branches),
        shared=shared,
        evaluations=tuple(evaluations),
        grid=grid,
        tables=tables,
        plots=tuple(pictures),
        page=out / "report.html",
    )
    write_atomically(report.page, to_html(report, plots, title=title, about=about))
    return report


_EVALUATION_WRITERS: Final = {
    "csv": evaluation_table.to_csv,
    "json": evaluation_table.to_json,
    "md": evaluation_table.to_markdown,
}


def to_html(report: Report, plots: Iterable[Plot], *, title: str, about: Sequence[str] = ()) -> str:
    """Write the page: it needs no other file and no network.

    :param report: the results.
    :param plots: the plots to show.
    :param title: heading.
    :param about: lines under it.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.j2").render(
        title=title,
        about=about,
        summary=report.grid.summary(),
        problems=[status for status in report.grid.cells.values() if status.reason],
        point_tables=[(table, table.display()) for table in report.point_tables],
        columns=display_columns(report.table),
        rows=list(zip(report.table.rows, display_rows(report.table), strict=True)),
        branches=display_table(report.branches) if report.branches else [],
        note=padding_note(report.table.rows),
        broken=[bool(point.problems) for point in report.branches],
        shared=report.shared,
        evaluations=evaluation_table.display_table(report.evaluations) if report.evaluations else [],
        plots=[(plot, base64.b64encode(plot.png).decode("ascii")) for plot in plots],
    )
