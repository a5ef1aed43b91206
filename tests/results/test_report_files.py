"""A report belongs to a run, and never replaces a report with more results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.results.report.report_files import ABOUT, AboutReport, holds_more, publish, read_about

if TYPE_CHECKING:
    from pathlib import Path


def report(
    sweep: Path, run: str, complete: float, names: tuple[str, ...] = ("results.md", "report.html")
) -> bool:
    """Write the files of a run's report and publish them."""
    folder = sweep / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"{run} {complete}")
    return publish([folder / name for name in names], sweep, AboutReport(run=run, complete=complete))


def shown(sweep: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sweep.iterdir() if path.is_file() and path.name != ABOUT}


@pytest.mark.parametrize(
    ("second", "holds"),
    [(0.25, "first"), (0.99, "first"), (1.0, "second"), (0.0, "first")],
)
def test_less_never_replaces_more(second: float, holds: str, tmp_path: Path) -> None:
    assert report(tmp_path, "first", 1.0)
    assert report(tmp_path, "second", second) is (holds == "second")
    expected = f"{holds} {1.0 if holds == 'first' else second}"
    assert shown(tmp_path) == {"results.md": expected, "report.html": expected}
    assert read_about(tmp_path).run == holds
    # each run keeps its own
    assert (tmp_path / "runs" / "second" / "results.md").read_text() == f"second {second}"
    assert (tmp_path / "runs" / "first" / "results.md").read_text() == "first 1.0"


def test_a_run_replaces_its_own_report_by_one_that_holds_as_much(tmp_path: Path) -> None:
    report(tmp_path, "first", 0.5)
    assert report(tmp_path, "first", 0.75)
    assert shown(tmp_path)["results.md"] == "first 0.75"
    assert not report(tmp_path, "first", 0.5)
    assert shown(tmp_path)["results.md"] == "first 0.75"


@pytest.mark.parametrize(
    ("shown_losses", "losses", "is_more"),
    [(3, 2, True), (3, 3, False), (2, 3, False), (None, 0, False), ("x", 0, False)],
)
def test_without_finished_jobs_losses_count(shown_losses: Any, losses: int, is_more: bool) -> None:
    existing = AboutReport.from_json({"complete": 0.0, "losses": shown_losses})
    assert holds_more(existing, AboutReport(losses=losses)) is is_more
    assert not holds_more(AboutReport(), AboutReport(losses=losses))


def test_the_subject_is_read_as_written() -> None:
    about = AboutReport(
        "s", "d", "r", "c", 2, 4, "lr > 1", 3, 1, "ab", "cd", "2026-11-22T00:00:00+00:00", 0.5, 7
    )
    assert AboutReport.from_json(json.loads(json.dumps(about.to_json()))) == about


def test_what_an_earlier_report_left_goes(tmp_path: Path) -> None:
    report(tmp_path, "first", 0.5, ("results.md", "loss.png", "loss.svg", "report.html"))
    (tmp_path / "notes.txt").write_text("mine")
    report(tmp_path, "first", 0.5)
    report(tmp_path, "second", 0.5)
    assert set(shown(tmp_path)) == {"results.md", "report.html", "notes.txt"}
    assert not (tmp_path / "runs" / "first" / "loss.png").exists()


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"complete": "x"}', "[" * 100_000, "\0"])
def test_a_report_of_unknown_completeness_is_replaced(text: str | None, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    if text is not None:
        (tmp_path / ABOUT).write_text(text)
    assert report(tmp_path, "new", 0.1)
    assert shown(tmp_path)["report.html"] == "new 0.1"
