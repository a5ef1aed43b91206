"""The data of the report's interactive page, in the form that the server sends to the live page."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.logs.log_lines import IterationRecord
from airflow_megatron.results.readings.curve_points import kept_points
from airflow_megatron.results.store.line_numbers import METRICS
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.results.plots.charts import Chart
    from airflow_megatron.results.readings.progress import ProgressGrid
    from airflow_megatron.results.tables.attempts import AttemptRow
    from airflow_megatron.results.tables.trainings import Branch, ResultTable

_ALL_POINTS: Final = 40_000
"""Maximum number of values of all curves; each takes about 60 bytes of the page."""
_MOST: Final = 300
_LEAST: Final = 20
_ORDER: Final = (
    ("x", "failed"),
    ("r", "running"),
    ("t", "restarting"),
    ("q", "queued"),
    ("u", "blocked"),
    ("s", "cancelled"),
    ("w", "waiting"),
)


def page_data(
    table: ResultTable, grid: ProgressGrid, attempts: Sequence[AttemptRow], charts: Sequence[Chart | None]
) -> str:
    """Return the page's data as JSON in ASCII.

    :param table: the table of trainings
    :param grid: the state of every job
    :param attempts: the attempts of all jobs
    :param charts: the charts of the page's figures, None for a figure that is only a picture
    """
    data = {
        "rows": _rows(table, grid, attempts),
        "curves": _curves(table),
        "failures": [_failure(row) for row in attempts if row.has_failed],
        "charts": [chart.to_json() if chart is not None else None for chart in charts],
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)


def _rows(table: ResultTable, grid: ProgressGrid, attempts: Sequence[AttemptRow]) -> list[dict[str, Any]]:
    of_point: dict[str, list[Branch]] = {}
    for branch in table.branches:
        of_point.setdefault(branch.row.point, []).append(branch)
    costs: dict[str, list[AttemptRow]] = {}
    for row in attempts:
        costs.setdefault(row.point, []).append(row)
    letters: dict[str, str] = {}
    for (point, _), status in grid.cells.items():
        letters[point] = letters.get(point, "") + status.state.letter
    return [
        _row(point, branches, letters.get(point, ""), costs.get(point, []))
        for point, branches in of_point.items()
    ]


def _row(
    point: str, branches: Sequence[Branch], letters: str, attempts: Sequence[AttemptRow]
) -> dict[str, Any]:
    last = next((each.row for each in reversed(branches) if each.row.iteration is not None), branches[0].row)
    losses = [each.row.validation_loss for each in branches]
    validated = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    gpu_hours = [row for row in attempts if row.gpu_hours is not None]
    job = branches[0].job
    speed = last.tokens_per_second
    found = {
        "point": shown(point),
        "state": next((state for letter, state in _ORDER if letter in letters), "finished"),
        "stages": letters,
        "params": {
            shown(name): value if isinstance(value, int | float | bool) else shown(str(value))
            for name, value in last.sweep_params.items()
            if value is not None and not (isinstance(value, float) and not math.isfinite(value))
        },
        "training": shown(last.branch),
        "iteration": last.iteration,
        "total": last.train_iters,
        "loss": None if last.diverged else _number(last.train_loss),
        "diverged": last.diverged or None,
        "validation_loss": _number(min(validated, default=None)),
        "tokens_per_s": _number(speed / (job.processes if job.gpus else 1) if speed else None),
        "attempts": len(attempts) or None,
        "gpu_hours": _number(sum(row.gpu_hours or 0.0 for row in gpu_hours) if gpu_hours else None),
        "lost_gpu_hours": _number(
            sum((row.gpu_hours or 0.0) * (1 - row.useful) for row in gpu_hours) if gpu_hours else None
        ),
    }
    return {name: value for name, value in found.items() if value is not None}


def _failure(row: AttemptRow) -> dict[str, Any]:
    lost = (row.gpu_hours or 0.0) * (1 - row.useful)
    found = {
        "point": shown(row.point),
        "outcome": row.outcome,
        "signature": row.signature,
        "node_list": row.nodes,
        "lost": _number(lost),
    }
    return {name: value for name, value in found.items() if value is not None}


def _curves(table: ResultTable) -> list[dict[str, Any]]:
    logged = [branch for branch in table.branches if branch.training.iterations]
    most = max(_LEAST, min(_MOST, _ALL_POINTS // max(1, len(logged))))
    costs = {(branch.row.point, branch.row.branch): _costs(branch) for branch in logged}
    return [_curve(branch, table.parent_of(branch), costs, most) for branch in logged]


def _costs(branch: Branch) -> dict[int, tuple[float, float]]:
    """Return iteration → FLOPs and hours of the training up to it, without those of its trunk."""
    flops = hours = 0.0
    found: dict[int, tuple[float, float]] = {}
    training = branch.training
    for record, took in zip(training.iterations, training.line_seconds, strict=True):
        seconds = took or 0.0
        hours += seconds / 3600
        flops += (record.throughput or 0.0) * 1e12 * branch.job.processes * seconds
        found[record.iteration] = flops, hours
    return found


def _curve(
    branch: Branch,
    trunk: Branch | None,
    costs: Mapping[tuple[str, str], dict[int, tuple[float, float]]],
    most: int,
) -> dict[str, Any]:
    """Return one training's curves; it begins at the last iteration that its trunk logged before it."""
    records = list(branch.training.iterations)
    begun: tuple[float, float] = (0.0, 0.0)
    joined: list[IterationRecord] = []
    if trunk is not None:
        joined = [each for each in trunk.training.iterations if each.iteration < records[0].iteration][-1:]
        if joined:
            begun = costs[trunk.row.point, trunk.row.branch][joined[0].iteration]
    losses = [
        each.loss if each.loss is not None and math.isfinite(each.loss) else math.inf for each in records
    ]
    kept = [records[index] for index in kept_points([each.iteration for each in records], losses, most)]
    own = costs[branch.row.point, branch.row.branch]
    place = {
        **{each.iteration: begun for each in joined},
        **{each.iteration: tuple(map(sum, zip(begun, own[each.iteration], strict=True))) for each in kept},
    }
    per_sample = branch.job.seq_length
    shown_records = [*joined, *kept]
    found: dict[str, Any] = {
        "point": shown(branch.row.point),
        "stage": shown(branch.row.branch),
        "parent": shown(branch.row.parent_branch or ""),
        "x": [each.iteration for each in shown_records],
        "tokens": [each.consumed_samples * per_sample if per_sample else None for each in shown_records],
        "flops": [_number(place[each.iteration][0]) or None for each in shown_records],
        "hours": [_number(place[each.iteration][1]) for each in shown_records],
        "restarts": _restarts(branch),
        "validations": [
            [iteration, _number(loss)]
            for iteration, loss in branch.training.validation_losses.items()
            if loss is not None
        ],
    }
    for metric in METRICS:
        values = [_number(getattr(each, metric)) for each in shown_records]
        if any(value is not None for value in values):
            found[metric] = values
    return found


def _restarts(branch: Branch) -> list[int]:
    attempts = sorted({log.attempt for log in branch.run.logs if log.stage == branch.job.stage})[1:]
    firsts = (
        next(
            (
                record.iteration
                for record in branch.run.records(branch.job.stage, attempt)
                if isinstance(record, IterationRecord)
            ),
            None,
        )
        for attempt in attempts
    )
    return [first for first in firsts if first is not None]


def _number(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
