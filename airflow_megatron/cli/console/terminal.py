"""The console for tables."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDTH_OF_FILES = 200
"""Width of tables that are written to a file or a pipe; wide enough to avoid line breaks."""


def console() -> Console:
    """Return a console with the width of the terminal, or of ``COLUMNS`` if it is set."""
    wide = sys.stdout.isatty() or os.environ.get("COLUMNS")
    return Console(width=None if wide else WIDTH_OF_FILES, highlight=False, markup=False, emoji=False)
