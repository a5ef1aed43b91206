"""The folders of reports: one for each run, and one for the most complete report of a sweep."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.report.atomic_files import write_atomically
from airflow_megatron.spec.trust.json_records import read_object, real, whole, word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

ABOUT: Final = "about.json"
"""Name of the file with the :class:`AboutReport` of a report."""
_KINDS: Final = frozenset((".csv", ".json", ".md", ".tex", ".parquet", ".png", ".svg", ".pdf", ".html"))


@dataclass(frozen=True)
class AboutReport:
    """``about.json``: the subject of a report.

    :param sweep: name of the sweep
    :param description: description of the sweep
    :param run: id of the sweep's run
    :param cluster: name of the cluster
    :param points: number of points in the report
    :param all_points: number of points of the whole sweep
    :param selection: expression or patterns that selected the points, empty for all
    :param limit: maximum number of points, None for all
    :param passed_over: number of points that had finished before the run
    :param digest: digest of the plan
    :param commit: commit of the checkout, empty if unknown
    :param written: time of the report in ISO format
    :param complete: finished share of the jobs of the whole sweep, from 0 to 1
    :param losses: number of trainings that have a loss
    """

    sweep: str = ""
    description: str = ""
    run: str = ""
    cluster: str = ""
    points: int = 0
    all_points: int = 0
    selection: str = ""
    limit: int | None = None
    passed_over: int = 0
    digest: str = ""
    commit: str = ""
    written: str = ""
    complete: float = 0.0
    losses: int = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AboutReport:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; invalid values count as missing."""
        texts = ("sweep", "description", "run", "cluster", "selection", "digest", "commit", "written")
        return cls(
            **{name: word(value.get(name)) or "" for name in texts},
            points=whole(value.get("points"), 0),
            all_points=whole(value.get("all_points"), 0),
            limit=whole(value.get("limit")),
            passed_over=whole(value.get("passed_over"), 0),
            complete=real(value.get("complete"), 0.0),
            losses=whole(value.get("losses"), 0),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object to write."""
        return asdict(self)


def publish(files: Iterable[Path], sweep_dir: Path, about: AboutReport) -> bool:
    """Keep a run's report, and copy it into the sweep's folder unless that holds a more complete one.

    Files of an earlier report that this one does not have are removed from both folders.

    :param files: files of the report, in the run's folder, the page last
    :param sweep_dir: the sweep's folder
    :param about: the subject of the report
    :return: whether the sweep's folder holds this report now
    """
    written = list(files)
    folder = written[-1].parent
    text = json.dumps(about.to_json(), indent=2, ensure_ascii=False) + "\n"
    names = {path.name for path in written} | {ABOUT}
    write_atomically(folder / ABOUT, text)
    _remove_others(folder, names)
    shown = read_about(sweep_dir)
    if holds_more(shown, about):
        return False
    for path in written[:-1]:
        write_atomically(sweep_dir / path.name, path.read_bytes())
    write_atomically(sweep_dir / ABOUT, text)
    write_atomically(sweep_dir / written[-1].name, written[-1].read_bytes())
    _remove_others(sweep_dir, names)
    return True


def read_about(folder: Path) -> AboutReport:
    """Return the subject of the report in a folder; an empty one if there is none or it cannot be read."""
    try:
        text = (folder / ABOUT).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return AboutReport()
    return AboutReport.from_json(read_object(text) or {})


def holds_more(shown: AboutReport, about: AboutReport) -> bool:
    """Return whether an existing report has more results than another: finished jobs, otherwise losses.

    :param shown: the existing report
    :param about: the other report
    """
    return (shown.complete, shown.losses) > (about.complete, about.losses)


def _remove_others(folder: Path, names: Iterable[str]) -> None:
    kept = set(names)
    for path in folder.iterdir():
        if (
            path.suffix in _KINDS
            and path.name not in kept
            and path.is_file()
            and not path.name.startswith(".")
        ):
            path.unlink()
