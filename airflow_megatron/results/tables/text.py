"""Tables of text cells, for terminals and for Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.trust.json_records import real

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDE_SIGNS: Final = (
    "\N{FULLWIDTH EQUALS SIGN}",
    "\N{FULLWIDTH PLUS SIGN}",
    "\N{FULLWIDTH HYPHEN-MINUS}",
    "\N{FULLWIDTH COMMERCIAL AT}",
)
_AFTER_SEPARATOR: Final = re.compile(rf"(;\s*)(?=[=+@{''.join(_WIDE_SIGNS)}-])")
"""The start of a formula where a spreadsheet that separates at semicolons begins a cell."""


def aligned_text(table: Sequence[Sequence[str]]) -> str:
    """Return a table as aligned plain text, independent of the terminal.

    :param table: the headings, then the rows; all of one length.
    """
    widths = [max(len(line[index]) for line in table) for index in range(len(table[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown.

    :param table: the headings, then the rows; all of one length.
    """
    head, *rows = [[_escaped(cell) for cell in line] for line in table]
    lines = [_line(head), "|" + " --- |" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escaped(text: str) -> str:
    """Return a cell whose text cannot become an element of HTML, a link or an image: jobs choose names of tasks."""
    return re.sub(r"[\\|<\[]", r"\\\g<0>", text).replace("\n", " ")


def csv_cell(cell: object) -> object:
    """Return a cell for CSV: empty for None, and without text that a spreadsheet would evaluate."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if not isinstance(cell, str):
        return cell
    cell = _AFTER_SEPARATOR.sub(r"\1'", cell)
    # A spreadsheet evaluates a cell that begins like a formula; "-" also begins numbers. Excel reads wide signs, too.
    if cell.startswith(("=", "+", "@", "\t", "\r", *_WIDE_SIGNS)) or (
        cell.startswith("-") and real(cell) is None
    ):
        return "'" + cell
    return cell
