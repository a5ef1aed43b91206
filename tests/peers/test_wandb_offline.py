"""W&B's offline files, record by record."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest
from peer_servers import BEGAN, JOBS, SWEEP, StoredSweep, loss, peer_python

from airflow_megatron.results.trackers.pushing import Pushed, push_sweep
from airflow_megatron.results.trackers.wandb import Wandb
from airflow_megatron.results.trackers.wandb_files import history_of
from airflow_megatron.spec.model.schema import TrackerSection
from airflow_megatron.spec.trackers.tracker import TrackedRecord, TrackedTraining, TrackerAccess

if TYPE_CHECKING:
    from pathlib import Path

KEY = "k" * 40
ACCESS = TrackerAccess(password=KEY, options={"mode": "offline", "entity": "ours"})
SECTION = TrackerSection(tracker="wandb", connection="any")


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the separate environment, after those of Airflow's environment on the path."""
    packages = next((peer_python("wandb").parent.parent / "lib").glob("python*/site-packages"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "local").rglob("*.wandb"))


def history(paths: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each run, those of several files in the order in which W&B sends them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        found.setdefault(path.stem, []).extend(history_of(path.read_bytes()))
    return found


def test_files_hold_each_record_once_over_a_restart_a_rollback_and_a_branch(
    stored: StoredSweep, tmp_path: Path
) -> None:
    def push(*, ended: bool = False) -> Pushed:
        return push_sweep(stored.store, SWEEP, JOBS, SECTION, ACCESS, ended=ended)

    stored.log("trunk", 1, range(1, 61))
    stored.validate("trunk", 1, 50, 3.5)
    push()
    stored.log("trunk", 2, range(41, 81))
    stored.log("decay", 3, range(51, 71))
    push(ended=True)
    before = files(tmp_path)
    assert push(ended=True) == Pushed(0, 0)
    assert files(tmp_path) == before

    runs = sorted(history(before).values(), key=len)
    assert [len(run) for run in runs] == [70, 80]
    expected = [
        {
            "_step": number,
            "_timestamp": BEGAN,
            "loss": loss(number, attempt),
            "params norm": 7.0,
            "attempt": float(attempt),
            "consumed_samples": 4.0 * number,
            "consumed_tokens": 128.0 * number,
            **({"validation_loss": 3.5} if number == 50 else {}),
        }
        for number in range(1, 81)
        for attempt in [1 if number <= 60 else 2]
    ]
    assert [without_clock(record) for record in runs[1]] == expected
    assert [record["_step"] for record in runs[0]] == [*range(1, 71)]
    assert not [
        path
        for path in (tmp_path / "local").rglob("*")
        if path.is_file() and KEY.encode() in path.read_bytes()
    ]


def without_clock(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "_runtime"}


def test_what_a_killed_push_has_written_is_not_written_again(tmp_path: Path) -> None:
    training = TrackedTraining(SWEEP, "p", "trunk")
    records = [TrackedRecord(step, BEGAN, {"loss": 1.0}) for step in range(1, 11)]
    with Wandb().open(ACCESS, "p") as session:
        session._note = lambda *_: None  # type: ignore[attr-defined,method-assign]
        session.push(training, records)
        (path,) = files(tmp_path)
    whole = path.read_bytes()
    ends = [*itertools.accumulate(1 for _ in history_of(whole))]
    assert ends[-1:] == [10]
    for size in (len(whole) // 2, len(whole)):  # the process was killed while it wrote
        path.write_bytes(whole[:size])
        there = len([*history_of(whole[:size])])
        with Wandb().open(ACCESS, "p") as session:
            assert session.last_step(training) == (there or -1)
