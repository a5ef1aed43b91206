"""The folders of reports: one of each run, and the most complete of a sweep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.report.atomic_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

ABOUT: Final = "about.json"
"""What a report is about: sweep, run, cluster, selection, digest, commit, date, and how complete it is."""
_KINDS: Final = frozenset((".csv", ".json", ".md", ".tex", ".parquet", ".png", ".svg", ".pdf", ".html"))


def publish(files: Iterable[Path], sweep_dir: Path, about: Mapping[str, Any]) -> bool:
    """Keep a run's report, and copy it into the sweep's folder unless that holds a more complete one.

    Files of an earlier report that this one does not have are removed from both folders.

    :param files: of the report, in the run's folder, the page last
    :param sweep_dir: the sweep's folder
    :param about: ``run``, ``complete`` (0 to 1), ``losses`` (trainings that have one) and whatever else is known
    :return: whether the sweep's folder holds this report now
    """
    written = list(files)
    folder = written[-1].parent
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
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


def read_about(folder: Path) -> dict[str, Any]:
    """Return what the report in a folder is about, nothing where there is none or it cannot be read."""
    try:
        data = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def holds_more(shown: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Return whether a report that is there holds more results than another: jobs that finished, else losses.

    :param shown: what the one that is there is about; empty for none
    :param about: what the other is about
    """
    return (_complete(shown), _losses(shown)) > (_complete(about), _losses(about))


def _losses(about: Mapping[str, Any]) -> int:
    count = about.get("losses")
    return count if isinstance(count, int) else 0


def _complete(about: Mapping[str, Any]) -> float:
    share = about.get("complete")
    return float(share) if isinstance(share, int | float) else 0.0


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
