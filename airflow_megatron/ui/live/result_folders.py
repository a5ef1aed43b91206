"""Reader of the folders with sweeps' reports, for the web page."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pendulum

from airflow_megatron.spec.trust.json_records import LARGEST_RECORD, read_json, real, word
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from pathlib import Path

REPORT = "report.html"
RESULTS = "results.json"
RUNS = "runs"
DOWNLOADS = frozenset((".csv", ".json", ".md", ".tex", ".parquet", ".png", ".svg", ".pdf"))

_LONGEST_NAME = 200
_SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class SweepResults:
    """A summary of a sweep's report.

    :param name: the sweep
    :param written: when the report was written
    :param points: number of points
    :param branches: number of training branches: pretraining and cooldowns of all points
    :param finished: number of finished branches
    :param best: point and branch with the lowest validation loss, empty when there is none
    :param best_loss: that loss, in nats per token
    """

    name: str
    written: pendulum.DateTime
    points: int = 0
    branches: int = 0
    finished: int = 0
    best: str = ""
    best_loss: float | None = None


class ResultFolders:
    """The result folders of all sweeps, one per sweep.

    A requested name is compared with the names in the folders and never becomes part of a path.

    :param root: the parent folder; it need not exist
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def sweeps(self) -> list[SweepResults]:
        """Return every sweep that has a report, the newest first."""
        found = []
        for folder in self._folders().values():
            with contextlib.suppress(OSError):  # it was replaced or removed a moment ago
                found.append(self._summary(folder))
        return sorted(found, key=lambda sweep: (-sweep.written.timestamp(), sweep.name))

    def report(self, sweep: str) -> Path | None:
        """Return the report page of a sweep, None if there is none."""
        folder = self._folders().get(sweep)
        return folder / REPORT if folder else None

    def runs(self, sweep: str) -> dict[str, Path]:
        """Return the report pages of a sweep's runs by the names of their folders, the newest first.

        Names that a page cannot show (control characters, bytes that are not UTF-8) are left out.
        """
        folder = self._folders().get(sweep)
        place = folder / RUNS if folder else None
        if place is None or not place.is_dir() or place.is_symlink():
            return {}
        pages = {
            path.name: path / REPORT
            for path in place.iterdir()
            if path.name.isprintable()
            and not path.is_symlink()
            and (path / REPORT).is_file()
            and not (path / REPORT).is_symlink()
        }
        return dict(sorted(pages.items(), key=lambda item: -item[1].stat().st_mtime_ns))

    def downloads(self, sweep: str) -> dict[str, Path]:
        """Return the tables and plots of a sweep, sorted by file name; names that :meth:`runs` would leave out are
        left out.
        """
        folder = self._folders().get(sweep)
        if folder is None:
            return {}
        return {
            path.name: path
            for path in sorted(folder.iterdir())
            if path.suffix in DOWNLOADS
            and path.name.isprintable()
            and path.is_file()
            and not path.is_symlink()
        }

    def _folders(self) -> dict[str, Path]:
        if not self.root.is_dir():
            return {}
        return {
            path.name: path
            for path in self.root.iterdir()
            if _SWEEP_NAME.fullmatch(path.name) and _is_own_folder(path)
        }

    @staticmethod
    def _summary(folder: Path) -> SweepResults:
        written = pendulum.from_timestamp((folder / REPORT).stat().st_mtime)
        rows = _rows(folder / RESULTS)
        losses = {
            f"{row['point']} {row['branch']}": loss
            for row in rows
            if (loss := real(row.get("validation_loss"))) is not None
        }
        best = min(losses, key=losses.__getitem__, default="")
        return SweepResults(
            folder.name,
            written,
            points=len({row["point"] for row in rows}),
            branches=len(rows),
            finished=sum(row.get("state") == "finished" for row in rows),
            best=shown(best)[:_LONGEST_NAME],
            best_loss=losses.get(best),
        )


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of ``results.json``; none if it is missing or not a table, which must not hide the report."""
    try:
        is_table = path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_RECORD
        rows = read_json(path.read_bytes()) if is_table else None
    except OSError:
        return []
    return [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and word(row.get("point")) and word(row.get("branch"))
    ]


def _is_own_folder(path: Path) -> bool:
    """Return whether a folder holds a report that is not a link, which could show a file from elsewhere."""
    report = path / REPORT
    return not path.is_symlink() and report.is_file() and not report.is_symlink()
