"""Learning-rate searches in the report: their table and figure, with a comparison of optimizers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from run_tree import take_snapshot

from airflow_megatron.results.plots.lr_searches import draw_searches, read_searches, search_table
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.results.report.report import write_report

if TYPE_CHECKING:
    from pathlib import Path

    from run_tree import RunTree

    from airflow_megatron.results.plots.lr_searches import LearningRateSearch

RATES = [10 ** (power / 10 - 6) for power in range(60)]


def add_search(
    tree: RunTree, optimizer: str, width: int, floor: float, *, finished: bool = True
) -> dict[str, Any]:
    """Write a search that falls to a floor at 1e-2 and rises again, with the report that the trainer makes of it."""
    point = f"{optimizer}_{width}"
    run_dir = tree.root / point / "search"
    losses = [
        floor + (5 - floor) * min(1, abs(rate_power + 2) / 4)
        for rate_power in (i / 10 - 6 for i in range(60))
    ]
    if finished:
        rows = [f"{rate!r},{loss!r},{loss + 0.1!r}" for rate, loss in zip(RATES, losses, strict=True)]
        tree.write(
            run_dir / "lr_finder" / "lr_finder_data.csv",
            "\n".join(["learning_rate,loss,raw_loss", *rows, ""]),
        )
        found = {
            "optimizer": optimizer,
            "suggested": 1e-3,
            "minima": [1e-2],
            "lowest": {"learning_rate": 1e-2, "loss": floor},
            "steepest_descent": 3e-4,
            "blow_up": None,
        }
        tree.write(run_dir / "lr_finder" / "lr_finder.json", json.dumps(found))
        tree.attempt(run_dir, "search", 1)
        tree.verdict(run_dir, "search", "finished", "done")
    return {
        "name": f"s.{point}.search",
        "point": point,
        "stage": "search",
        "kind": "lr_finder",
        "run_dir": str(run_dir),
        "params": {"optimizer": optimizer},
        "sweep_params": {"optimizer": optimizer, "hidden_size": width},
    }


@pytest.fixture
def jobs(tree: RunTree) -> list[dict[str, Any]]:
    return [
        add_search(tree, "adamw", 64, 2.5),
        add_search(tree, "muon", 64, 2.25),
        add_search(tree, "lion", 64, 2.75),
        add_search(tree, "muon", 128, 2.0),
        add_search(tree, "lion", 128, 2.0, finished=False),
    ]


def searches_of(jobs: list[dict[str, Any]]) -> list[LearningRateSearch]:
    return read_searches(take_snapshot([job["run_dir"] for job in jobs]), read_jobs(jobs))


def test_what_was_found(jobs: list[dict[str, Any]]) -> None:
    first, *_, waiting = searches_of(jobs)
    assert (first.suggested, first.lowest_rate, first.lowest_loss) == (1e-3, 1e-2, 2.5)
    assert (first.minima, first.blow_up, first.outcome) == ((1e-2,), None, "finished")
    assert [rate for rate, _ in first.curve] == RATES
    assert min(loss for _, loss in first.curve) == pytest.approx(2.5)
    assert (waiting.optimizer, waiting.suggested, waiting.curve) == ("lion", None, ())
    assert waiting.outcome != "finished"


def test_the_best_of_the_optimizers_is_marked(jobs: list[dict[str, Any]]) -> None:
    searches = searches_of(jobs)
    # A single search is not marked as the best.
    assert [search.point for search in searches if search.best] == ["muon_64"]
    head, _, *lines = search_table(searches).to_markdown().splitlines()
    assert head.startswith("| point | optimizer | hidden_size | suggested lr | lowest loss | best |")
    assert "| 0.001 | 2.2500 | ★ | 0.01 |" in lines[1]


@pytest.mark.slow
def test_a_panel_for_each_group_of_optimizers(jobs: list[dict[str, Any]]) -> None:
    searches = searches_of(jobs)
    (plot,) = draw_searches(searches)
    texts = " ".join(re.findall(r"<text[^>]*>([^<]*)<", plot.svg.decode()))
    for text in ("hidden_size=64", "hidden_size=128", "adamw", "muon", "lion", "suggested", "learning rate"):
        assert text in texts
    assert draw_searches(searches[-1:]) == []


def test_damaged_files_are_reported(tree: RunTree, jobs: list[dict[str, Any]]) -> None:
    folder = tree.root / "adamw_64" / "search" / "lr_finder"
    tree.write(folder / "lr_finder.json", "{cut")
    tree.write(folder / "lr_finder_data.csv", "learning_rate,loss,raw_loss\n1e-3,2.5,2.5\n1e-2,nan,3\n1e-1")
    snapshot = take_snapshot([jobs[0]["run_dir"]])
    (search,) = read_searches(snapshot, read_jobs(jobs[:1]))
    assert search.suggested is None
    assert search.curve == ((1e-3, 2.5),)
    assert snapshot.run(jobs[0]["run_dir"]).unreadable == ["lr_finder/lr_finder.json"]


@pytest.mark.slow
def test_report(tmp_path: Path, jobs: list[dict[str, Any]]) -> None:
    report = write_report(
        take_snapshot([job["run_dir"] for job in jobs]), jobs, tmp_path / "out", title="search"
    )
    assert {path.name for path in report.paths if path.stem not in ("attempts", "cost")} == {
        *("lr_finder.csv", "lr_finder.json", "lr_finder.md", "lr_finder.tex", "lr_finder.parquet"),
        *("lr_finder.png", "lr_finder.svg", "lr_finder.pdf", "report.html"),
    }
    assert "2.2500" in report.text
    page = report.page.read_text()
    assert page.count("<h2>Learning-rate searches</h2>") == 2
    assert "<h2>Results</h2>" not in page
