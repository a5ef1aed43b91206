"""The report of a sweep: table files, plots, and one HTML page with all of them."""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_megatron.results.fits.refusals import missing_for_fits
from airflow_megatron.results.fits.sweep_runs import sweep_runs
from airflow_megatron.results.plots.charts import draw_charts
from airflow_megatron.results.plots.figures import attempted, missing_for_plots
from airflow_megatron.results.plots.lr_batch_maps import draw_maps
from airflow_megatron.results.plots.lr_searches import draw_searches, read_searches, search_table
from airflow_megatron.results.plots.plots import draw_plots
from airflow_megatron.results.plots.study_charts import study_charts
from airflow_megatron.results.readings.progress import ProgressGrid, StageState, progress_grid
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.results.report.atomic_files import write_atomically
from airflow_megatron.results.report.page_data import page_data
from airflow_megatron.results.report.page_scripts import chart_library, page_script, page_style
from airflow_megatron.results.report.table_files import (
    curves_parquet,
    evaluation_files,
    fit_files,
    parquet,
    result_files,
)
from airflow_megatron.results.tables.attempts import AttemptRow, attempt_rows, attempt_table
from airflow_megatron.results.tables.benchmarks import benchmark_rows, benchmark_table
from airflow_megatron.results.tables.branch_points import (
    BranchPoint,
    SharedCompute,
    branch_points,
    branches_json,
    display_table,
    shared_compute,
)
from airflow_megatron.results.tables.costs import cost_rows, cost_table
from airflow_megatron.results.tables.evaluation_rows import EvaluationRow, evaluation_rows
from airflow_megatron.results.tables.evaluation_rows import display_table as evaluation_lines
from airflow_megatron.results.tables.jobs import job_table
from airflow_megatron.results.tables.latex import latex_table
from airflow_megatron.results.tables.text import aligned_text
from airflow_megatron.results.tables.throughput import node_rows, node_table, speed_rows, speed_table
from airflow_megatron.results.tables.training_health import health_rows, health_table
from airflow_megatron.results.tables.trainings import (
    ResultTable,
    display_columns,
    display_rows,
    result_table,
    to_text,
)
from airflow_megatron.results.tables.vocabulary_padding import padding_note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.results.fits.sweep_fits import SweepFits
    from airflow_megatron.results.plots.figures import Plot
    from airflow_megatron.results.plots.lr_searches import LearningRateSearch
    from airflow_megatron.results.readings.snapshot import SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.tables.points import PointTable
    from airflow_megatron.results.tables.training_health import HealthRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """The written report.

    :param table: the result table
    :param point_tables: tables of benchmarks and of searches for a learning rate, if the sweep has such stages
    :param study_tables: tables of stability, speed, nodes, cost and attempts that have rows
    :param branches: branch points; empty for a sweep without branches
    :param shared: savings of shared trunks, None if nothing was shared
    :param evaluations: every value of every evaluated checkpoint
    :param fits: optima and laws, None if the runs determine none or scipy is not installed
    :param grid: the state of every job
    :param attempts: the attempts of all jobs

    :param tables: the tables' files: CSV, JSON, Markdown
    :param exports: the same tables as LaTeX and Parquet, and all files of the study tables
    :param plots: the pictures: PNG, SVG, PDF
    :param page: the HTML page
    """

    table: ResultTable
    point_tables: tuple[PointTable[Any], ...]
    study_tables: tuple[PointTable[Any], ...]
    branches: tuple[BranchPoint, ...]
    shared: SharedCompute | None
    evaluations: tuple[EvaluationRow, ...]
    fits: SweepFits | None
    grid: ProgressGrid
    attempts: tuple[AttemptRow, ...]
    tables: tuple[Path, ...]
    exports: tuple[Path, ...]
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
        return (*self.tables, *self.exports, *self.plots, self.page)


def write_report(
    snapshot: SweepSnapshot,
    jobs: Iterable[Mapping[str, Any]],
    out_dir: Path | str,
    *,
    title: str = "Sweep results",
    about: Sequence[str] = (),
    queue_waits: Mapping[tuple[str, str, int], float] | None = None,
) -> Report:
    """Write a sweep's results to a directory: those of its trainings, benchmarks and searches.

    Each file is written atomically, the page last; equal results give equal files.

    :param snapshot: the run directories.
    :param jobs: the ``jobs`` of the plan (see :func:`~airflow_megatron.results.readings.sweep_jobs.read_jobs`).
    :param out_dir: the directory, created if missing: ``results.csv``, ``.json``, ``.md``, ``.tex``, ``.parquet``, the
        same of the other tables (docs/reports.md), ``branches.json``, ``fits.json``, ``curves.parquet``,
        ``<plot>.png``, ``.svg``, ``.pdf``, ``report.html``.
    :param title: heading of the page, usually the sweep's name.
    :param about: lines under it, also in the Markdown files: the subject, the place and the time of the run.
    :param queue_waits: point, stage, attempt → seconds in the queue, if known.
    :returns: the files and the table.
    """
    out = Path(out_dir)
    sweep_jobs = read_jobs(jobs)
    table = result_table(snapshot, sweep_jobs)
    evaluations = evaluation_rows(table, snapshot, sweep_jobs)
    searches = read_searches(snapshot, sweep_jobs)
    grid = progress_grid(snapshot, sweep_jobs)
    attempts = attempt_rows(snapshot, sweep_jobs)
    health = health_rows(table.branches)
    point_tables = _point_tables(table, snapshot, sweep_jobs, searches, grid)
    study_tables = _study_tables(table, attempts, health, queue_waits)
    branches = branch_points(table)
    shared = shared_compute(table, branches)
    fits = _fits(table)
    texts: dict[str, str | bytes] = {}
    if table.rows or not point_tables:
        texts |= result_files(table)
    for point_table in (*point_tables, *study_tables):
        texts |= point_table.files() | {f"{point_table.name}.parquet": parquet(point_table.to_csv())}
    if branches:
        texts["branches.json"] = branches_json(branches, shared)
        texts["branches.tex"] = latex_table(display_table(branches), caption="Branches", label="branches")
    if evaluations:
        texts |= evaluation_files(evaluations)
    if fits is not None:
        texts |= fit_files(fits)
    if curves := curves_parquet(table):
        texts["curves.parquet"] = curves
    if about:
        heading = "".join(f"{line}\n\n" for line in (f"# {title}", *about))
        texts = {
            name: heading + text if name.endswith(".md") and isinstance(text, str) else text
            for name, text in texts.items()
        }
    written = [write_atomically(out / name, text) for name, text in texts.items()]
    studies = {table.name for table in study_tables}
    is_table = {path: path.suffix in _TABLE_FILES and path.stem not in studies for path in written}
    # after the tables, which must exist even if this fails
    plots = _plots(table, searches, evaluations, health, fits)
    pictures = [
        write_atomically(out / name, picture) for plot in plots for name, picture in plot.files.items()
    ]
    report = Report(
        table=table,
        point_tables=tuple(point_tables),
        study_tables=tuple(study_tables),
        branches=tuple(branches),
        shared=shared,
        evaluations=tuple(evaluations),
        fits=fits,
        grid=grid,
        attempts=tuple(attempts),
        tables=tuple(path for path in written if is_table[path]),
        exports=tuple(path for path in written if not is_table[path]),
        plots=tuple(pictures),
        page=out / "report.html",
    )
    write_atomically(report.page, to_html(report, plots, title=title, about=about))
    return report


def _point_tables(
    table: ResultTable,
    snapshot: SweepSnapshot,
    jobs: Sequence[SweepJob],
    searches: Sequence[LearningRateSearch],
    grid: ProgressGrid,
) -> list[PointTable[Any]]:
    """Return the tables of benchmarks and searches; for a sweep without these and without stages of a training
    kind, the table of its jobs.
    """
    benchmarks = benchmark_rows(snapshot, jobs)
    tables: list[PointTable[Any]] = [benchmark_table(benchmarks)] if benchmarks else []
    tables += [search_table(searches)] if searches else []
    if not tables and jobs and not any(job.reported_as == "training" for job in jobs):
        tables.append(job_table(jobs, grid))
    return tables


def _study_tables(
    table: ResultTable,
    attempts: Sequence[AttemptRow],
    health: Sequence[HealthRow],
    queue_waits: Mapping[tuple[str, str, int], float] | None,
) -> list[PointTable[Any]]:
    """Return the tables of stability, speed, nodes, cost and attempts that have rows."""
    speeds, nodes = speed_rows(table.branches), node_rows(table.branches, attempts)
    costs = cost_rows(attempts, queue_waits)
    tables: list[PointTable[Any]] = [health_table(health)] if health else []
    tables += [speed_table(speeds)] if speeds else []
    tables += [node_table(nodes)] if nodes else []
    tables += [cost_table(costs)] if costs else []
    tables += [attempt_table(attempts)] if attempts else []
    return tables


def _plots(
    table: ResultTable,
    searches: Sequence[LearningRateSearch],
    evaluations: Sequence[EvaluationRow],
    health: Sequence[HealthRow],
    fits: SweepFits | None,
) -> list[Plot]:
    missing = missing_for_plots()
    if missing:
        log.warning("%s", missing)
        return []
    plots = [*draw_plots(table), *draw_maps(table), *draw_searches(searches)]
    plots += draw_charts(study_charts(table, evaluations, health, fits))
    if fits is not None:
        from airflow_megatron.results.plots.fit_charts import fit_charts
        from airflow_megatron.results.plots.fit_plots import draw_fits

        plots += [*draw_fits(fits), *draw_charts(fit_charts(fits))]
    return plots


def _fits(table: ResultTable) -> SweepFits | None:
    """Fit over several sizes, token budgets, learning rates or batches; return None if every fit is refused."""
    if len(table.rows) < _FEWEST_RUNS or missing_for_fits():
        return None
    runs = sweep_runs(table)
    if len(runs.runs) < _FEWEST_RUNS:
        return None
    from airflow_megatron.results.fits.sweep_fits import fit_sweep  # numpy and scipy take a while to load

    with attempted("fits"):
        fits = fit_sweep(runs)
        if any(row.estimates for family in fits.families for rows in family.rows.values() for row in rows):
            return fits
    return None


_FEWEST_RUNS: Final = 5
_TABLE_FILES: Final = frozenset((".csv", ".json", ".md"))


def to_html(report: Report, plots: Sequence[Plot], *, title: str, about: Sequence[str] = ()) -> str:
    """Write the page, which needs no other file and no network.

    Texts from jobs are escaped; the data of the interactive part are the text of an element, parsed as JSON.

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
        problems=[
            status
            for status in report.grid.cells.values()
            if status.reason and status.state is not StageState.BLOCKED  # the blocking job is among them
        ],
        point_tables=[(table, table.display()) for table in report.point_tables],
        columns=display_columns(report.table),
        rows=list(zip(report.table.rows, display_rows(report.table), strict=True)),
        branches=display_table(report.branches) if report.branches else [],
        note=padding_note(report.table.rows),
        broken=["failed" if point.problems else "" for point in report.branches],
        shared=report.shared,
        evaluations=evaluation_lines(report.evaluations) if report.evaluations else [],
        fits=_fit_tables(report.fits),
        study_tables=[(table, table.display()) for table in report.study_tables],
        data=page_data(report.table, report.grid, report.attempts, [plot.chart for plot in plots]),
        style=page_style(),
        library=chart_library(),
        script=page_script(),
        plots=[(plot, base64.b64encode(plot.png).decode("ascii")) for plot in plots],
    )


def _fit_tables(fits: SweepFits | None) -> list[tuple[str, str, list[list[str]]]]:
    if fits is None:
        return []
    from airflow_megatron.results.fits.sweep_fits import display_tables

    return display_tables(fits)
