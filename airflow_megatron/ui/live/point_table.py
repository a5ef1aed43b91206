"""The table of a sweep's points as JSON: one short row per point."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.tables.benchmarks import MIB_PER_GB, ratio
from airflow_megatron.spec.trust.plain_text import shown
from airflow_megatron.ui.live.recorded import JobReading, StageReading
from airflow_megatron.ui.live.sweep_runs import FINISHED, QUEUED, RUNNING, WAITING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.ui.live.planned_points import PlannedPoint, PlannedStage, PlannedSweep
    from airflow_megatron.ui.live.recorded import Recorded
    from airflow_megatron.ui.live.sweep_runs import Run

_PENDING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED"})


def point_rows(
    planned: PlannedSweep,
    runs: Mapping[str, Run],
    states: Mapping[str, Mapping[str, str]],
    recorded: Recorded,
) -> list[dict[str, Any]]:
    """Return a row for each point of a plan; unknown values are left out.

    ``point``, ``run`` and ``state`` of its run in Airflow, ``stages`` (one letter each), ``params``, ``cluster`` if
    the sweep has several; for its current training: ``training``, ``iteration``, ``total``, ``loss``, or ``diverged``
    if it is not a finite number, ``validation_loss`` (the lowest of all its trainings), ``tokens_per_s`` (per GPU),
    ``mfu`` (0 to 1), ``memory_gb`` (on the GPU that uses most) and ``eta_s``; for a benchmark also ``step_ms``, and
    ``step_ratio`` and ``memory_ratio`` to the values reported elsewhere; for all its jobs ``attempts``, ``gpu_hours``
    and ``lost_gpu_hours``.

    :param runs: point → its run in Airflow
    :param states: run → stage → letter
    """
    trainings, jobs = recorded.trainings(), recorded.jobs()
    return [_row(point, runs.get(point.name), states, trainings, jobs) for point in planned.points]


def _row(
    point: PlannedPoint,
    run: Run | None,
    states: Mapping[str, Mapping[str, str]],
    trainings: Mapping[tuple[str, str], StageReading],
    jobs: Mapping[tuple[str, str], JobReading],
) -> dict[str, Any]:
    of_stages = states.get(run.run_id, {}) if run else {}
    costs = [jobs.get((point.name, stage.name), JobReading()) for stage in point.stages]
    letters = [
        QUEUED
        if (letter := of_stages.get(stage.name, WAITING)) == RUNNING and cost.state in _PENDING
        else letter
        for stage, cost in zip(point.stages, costs, strict=True)
    ]
    row: dict[str, Any] = {
        "point": point.name,
        "run": run.run_id if run else None,
        "state": run.state if run else "none",
        "stages": "".join(letters),
        "params": {name: plain(value) for name, value in point.swept.items()},
        "cluster": point.cluster or None,
        "attempts": sum(cost.attempts for cost in costs) or None,
        "gpu_hours": rounded(sum(cost.gpu_hours for cost in costs)) or None,
        "lost_gpu_hours": rounded(sum(cost.lost for cost in costs)) or None,
    }
    of_letters = dict(zip((stage.name for stage in point.stages), letters, strict=True))
    read = [
        (stage, trainings.get((point.name, stage.name), StageReading()))
        for stage in point.stages
        if stage.trains or stage.measures or (point.name, stage.name) in trainings
    ]
    if read:
        row |= _training(*_current(read, of_letters), of_letters, point.peak)
        losses = [loss for _, one in read if (loss := rounded(one.validation_loss)) is not None]
        row["validation_loss"] = min(losses, default=None)
    return {name: value for name, value in row.items() if value is not None}


def _current(
    read: list[tuple[PlannedStage, StageReading]], letters: Mapping[str, str]
) -> tuple[PlannedStage, StageReading]:
    """Return the current training of a point: a running one, else the one that logged last, else the first."""
    running = [one for one in read if letters[one[0].name] == RUNNING]
    logged = [one for one in running or read if one[1].seen is not None]
    return max(logged, key=lambda one: one[1].seen or 0.0, default=(running or read)[0])


def _training(
    stage: PlannedStage, reading: StageReading, letters: Mapping[str, str], peak: float | None
) -> dict[str, Any]:
    total = reading.train_iters or stage.train_iters
    letter = letters[stage.name]
    done = reading.iteration if reading.iteration is not None else (total if letter == FINISHED else None)
    gpus = max(stage.gpus, 1)
    speed = None
    if reading.step_s and reading.tokens_per_iteration:
        speed = reading.tokens_per_iteration / reading.step_s / gpus
    step = reading.step_s * 1000 if reading.step_s else None
    memory = reading.memory_mib / MIB_PER_GB if reading.memory_mib else None
    left = None
    if letter == RUNNING and total and done is not None and reading.step_s:
        left = max(total - done, 0) * reading.step_s
    return {
        "training": stage.name,
        "iteration": done,
        "total": total,
        "loss": None if reading.diverged else rounded(reading.loss),
        "diverged": reading.diverged or None,
        "tokens_per_s": rounded(speed),
        "mfu": rounded(reading.tflops * 1e12 / peak) if reading.tflops and peak else None,
        "step_ms": rounded(step) if stage.measures else None,
        "step_ratio": rounded(ratio(step, stage.reported.get("step_ms"))),
        "memory_gb": rounded(memory),
        "memory_ratio": rounded(ratio(memory, stage.reported.get("memory_gb"))),
        "eta_s": rounded(left),
    }


def rounded(value: float | None) -> float | None:
    """Return a number with as many digits as a table or curve shows; None if it is not a finite number."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    return float(f"{value:.6g}")


def plain(value: Any) -> Any:
    """Return a swept value as a cell of the table: a number valid in JSON, a truth value, or text."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return shown(str(value))
