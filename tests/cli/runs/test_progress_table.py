"""The state of a sweep in a terminal is readable at 80 columns for any number of stages."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from airflow_megatron.cli.runs.progress_table import progress_table, short_duration
from airflow_megatron.results.readings.progress import ProgressGrid, StageState, StageStatus

STAGES = [f"cooldown_{budget}M{part}" for budget in (100, 200, 300) for part in ("", ".convert", ".evaluate")]


def grid_of(points: int, **changed: dict[str, Any]) -> ProgressGrid:
    """Return points whose jobs have all finished, but for some: ``p0__pretrain={...}``."""
    names = [f"p{number}" for number in range(points)]
    cells = {("", "prepare_data"): StageStatus("", "prepare_data", "s.prepare_data", StageState.FINISHED)}
    for point in names:
        for stage in ("pretrain", *STAGES):
            values = {"state": StageState.FINISHED} | changed.get(f"{point}__{stage.replace('.', '_')}", {})
            cells[point, stage] = StageStatus(point, stage, f"s.{point}.{stage}", **values)
    return ProgressGrid(("", *names), ("prepare_data", "pretrain", *STAGES), cells)


def drawn(grid: ProgressGrid, width: int, **options: Any) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(progress_table(grid, title="s on local", **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


RUNNING = {
    "state": StageState.RUNNING,
    "iteration": 40,
    "train_iters": 100,
    "loss": 3.2,
    "seconds_left": 700.0,
}
FAILED = {"state": StageState.FAILED, "reason": "exit code 1: CUDA out of memory", "attempts": 3}
WAITING = {"state": StageState.WAITING}


@pytest.mark.parametrize("width", [60, 80, 200])
def test_each_point_has_a_line_and_no_word_is_cut(width: int) -> None:
    grid = grid_of(
        3,
        p0__pretrain=RUNNING,
        p1__pretrain=FAILED,
        p0__cooldown_100M_convert=WAITING,
        p0__cooldown_100M_evaluate=WAITING,
    )
    lines = drawn(grid, width)
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "p0 7/10 pretrain running 40/100 loss 3.200, about 12 min left" in text
    assert "waiting: cooldown_100M.convert and 1 more" in text
    assert "pretrain failed (attempt 3): exit code 1: CUDA out of memory" in text
    assert "p2 10/10" in text
    assert "(sweep) 1/1" in text
    assert "31 jobs: 27 finished, 1 running, 2 waiting, 1 failed" in text


def test_of_many_points_the_unfinished_ones_are_shown() -> None:
    lines = drawn(grid_of(9, p7__pretrain=RUNNING), 80, rows=2)
    assert any(line.lstrip().startswith("p7 ") for line in lines)
    assert "8 more points not shown" in " ".join(lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0.4, "0 s"), (45, "45 s"), (700, "12 min"), (7200, "2 h"), (11100, "3 h 5 min")],
        *[(400_000, "4 d 15 h"), (172_800, "2 d")],
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


def test_blocked_jobs_are_counted_like_waiting_ones() -> None:
    blocked = {"state": StageState.BLOCKED, "reason": "pretrain has failed"}
    grid = grid_of(
        1, p0__pretrain=FAILED, p0__cooldown_100M_convert=blocked, p0__cooldown_100M_evaluate=blocked
    )
    text = " ".join(" ".join(drawn(grid, 200)).split())
    assert "blocked: cooldown_100M.convert and 1 more" in text
    assert "pretrain has failed" not in text
    assert "11 jobs: 8 finished, 2 blocked, 1 failed" in text
