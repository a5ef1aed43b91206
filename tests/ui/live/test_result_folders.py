from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.ui.live.result_folders import ResultFolders

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    {"point": "S", "branch": "pretrain", "state": "finished", "validation_loss": 2.5},
    {"point": "S", "branch": "cooldown", "state": "finished", "validation_loss": 2.25},
    {"point": "M", "branch": "pretrain", "state": "failed", "validation_loss": None},
]


def write_sweep(root: Path, name: str, results: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "report.html").write_text(f"<h1>{name}</h1>")
    (folder / "results.json").write_text(results)
    (folder / "loss_curves.png").write_bytes(b"\x89PNG")
    return folder


def test_a_sweep_is_summed_up_by_its_result_table(tmp_path: Path) -> None:
    write_sweep(tmp_path, "demo", json.dumps(ROWS))
    (sweep,) = ResultFolders(tmp_path).sweeps()
    assert (sweep.name, sweep.points, sweep.branches, sweep.finished) == ("demo", 2, 3, 2)
    assert (sweep.best, sweep.best_loss) == ("S cooldown", 2.25)


def test_a_folder_without_a_report_is_not_a_result(tmp_path: Path) -> None:
    write_sweep(tmp_path, "demo", "[]")
    (tmp_path / "demo" / "report.html").unlink()
    assert ResultFolders(tmp_path).sweeps() == []
    assert ResultFolders(tmp_path / "absent").sweeps() == []


@pytest.mark.parametrize(
    "results", ["", "{", "{}", '["x"]', '[{"point": "S"}]', '[{"point": "S", "branch": "b"}]']
)
def test_a_result_table_that_cannot_be_read_does_not_hide_the_report(tmp_path: Path, results: str) -> None:
    write_sweep(tmp_path, "demo", results)
    (sweep,) = ResultFolders(tmp_path).sweeps()
    assert sweep.best_loss is None


def test_downloads_are_tables_and_plots_only(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, "demo", "[]")
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "secret.json").write_text("{}")
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    assert list(ResultFolders(tmp_path).downloads("demo")) == ["loss_curves.png", "results.json"]


@pytest.mark.parametrize("name", ["..", ".", "", "demo/..", "/etc", "demo/../demo", ".hidden", "absent"])
def test_names_that_are_not_a_sweep_find_nothing(tmp_path: Path, name: str) -> None:
    write_sweep(tmp_path, "demo", "[]")
    write_sweep(tmp_path, ".hidden", "[]")
    folders = ResultFolders(tmp_path)
    assert folders.report(name) is None
    assert folders.downloads(name) == {}


def test_a_linked_folder_is_not_followed(tmp_path: Path) -> None:
    elsewhere = write_sweep(tmp_path / "elsewhere", "other", "[]")
    root = tmp_path / "results"
    root.mkdir()
    (root / "other").symlink_to(elsewhere)
    assert ResultFolders(root).sweeps() == []


def test_runs_of_a_sweep_are_those_with_a_report_of_their_own(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, "demo", "[]")
    for number, name in enumerate(("manual__2026-11-22T08:20:13.9+00:00", "scheduled__1")):
        write_sweep(folder / "runs", name, "[]")
        os.utime(folder / "runs" / name / "report.html", (number, number))
    (folder / "runs" / "unfinished").mkdir()
    (folder / "runs" / "link").symlink_to(tmp_path / "demo")
    (folder / "runs" / "inner").mkdir()
    (folder / "runs" / "inner" / "report.html").symlink_to(folder / "report.html")
    runs = ResultFolders(tmp_path).runs("demo")
    assert list(runs) == ["scheduled__1", "manual__2026-11-22T08:20:13.9+00:00"]
    assert ResultFolders(tmp_path).runs("absent") == {}
