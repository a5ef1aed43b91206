"""The console that tables are printed on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDTH_OF_FILES = 200
"""Columns of tables that go into a file or a pipe, so that lines are not folded there."""


def console() -> Console:
    """Return a console as wide as the terminal; ``COLUMNS`` says otherwise."""
    wide = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return Console(width=None if wide else WIDTH_OF_FILES, highlight=False, markup=False, emoji=False)
