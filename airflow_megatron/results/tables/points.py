"""A table with one row per point: its swept parameters, values and outcome."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from airflow_megatron.results.readings.sweep_jobs import finite_value, format_value, plain_values
from airflow_megatron.results.tables.latex import latex_table
from airflow_megatron.results.tables.text import aligned_text, csv_cell, markdown_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class PointRow(Protocol):
    """The columns of every row."""

    @property
    def point(self) -> str:
        """Name of the point."""

    @property
    def sweep_params(self) -> Mapping[str, Any]:
        """The swept parameters."""

    @property
    def outcome(self) -> str:
        """The outcome, in one or two words."""


RowT = TypeVar("RowT", bound=PointRow)


@dataclass(frozen=True, slots=True)
class Figure(Generic[RowT]):
    """A column of values.

    :param heading: heading in printed tables
    :param name: name in files
    :param read: returns the value from a row, or None if unknown
    :param form: format specification for printed tables
    """

    heading: str
    name: str
    read: Callable[[RowT], float | int | str | None]
    form: str


@dataclass(frozen=True)
class PointTable(Generic[RowT]):
    """The table, and its output formats.

    :param name: name of its files, without suffix
    :param title: a short description
    :param note: how to read it
    :param figures: the columns between the swept parameters and the outcome
    :param rows: one per point, at least one
    :param heading: heading of the first column
    :param swept: whether the swept parameters are columns
    """

    name: str
    title: str
    note: str
    figures: Sequence[Figure[RowT]]
    rows: Sequence[RowT]
    heading: str = "point"
    swept: bool = True

    def display(self) -> list[list[str]]:
        """Return the rows as readable cells, the headings first; columns without values are left out."""
        names = self._parameter_names()
        shown = [figure for figure in self.figures if any(figure.read(row) is not None for row in self.rows)]
        ends = ["outcome"] if any(row.outcome for row in self.rows) else []
        table = [[self.heading, *names, *(figure.heading for figure in shown), *ends]]
        for row in self.rows:
            cells = [format_value(row.sweep_params.get(name)) or "–" for name in names]
            for figure in shown:
                value = figure.read(row)
                cells.append("–" if value is None else format(value, figure.form))
            table.append([row.point, *cells, *([row.outcome] if ends else [])])
        return table

    def to_text(self) -> str:
        """Return the table as aligned plain text."""
        return aligned_text(self.display())

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        return markdown_table(self.display())

    def to_csv(self) -> str:
        """Return the table as CSV: the point, ``param:<name>`` for each swept parameter, the values, the outcome."""
        names = self._parameter_names()
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            [
                self.heading,
                *(f"param:{name}" for name in names),
                *(figure.name for figure in self.figures),
                "outcome",
            ]
        )
        for row in self.rows:
            cells = [format_value(row.sweep_params.get(name)) for name in names]
            values = [figure.read(row) for figure in self.figures]
            writer.writerow([csv_cell(cell) for cell in (row.point, *cells, *values, row.outcome)])
        return out.getvalue()

    def to_json(self) -> str:
        """Return the table as a JSON list of objects."""
        rows_as_json = [
            {
                self.heading: row.point,
                **({"sweep_params": plain_values(row.sweep_params)} if self.swept else {}),
                **{figure.name: finite_value(figure.read(row)) for figure in self.figures},
                "outcome": row.outcome,
            }
            for row in self.rows
        ]
        return json.dumps(rows_as_json, indent=2, default=str, allow_nan=False) + "\n"

    def files(self) -> dict[str, str]:
        """Return the files to write: name → content."""
        return {
            f"{self.name}.csv": self.to_csv(),
            f"{self.name}.json": self.to_json(),
            f"{self.name}.md": self.to_markdown(),
            f"{self.name}.tex": latex_table(self.display(), caption=self.title, label=self.name),
        }

    def _parameter_names(self) -> list[str]:
        return (
            list(dict.fromkeys(name for row in self.rows for name in row.sweep_params)) if self.swept else []
        )
