"""The remaining time of the trainings of a sweep."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from airflow_megatron.ui.live.recorded import StageReading

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_megatron.ui.live.planned_points import PlannedStage, PlannedSweep


def seconds_left(
    planned: PlannedSweep,
    running: Collection[str],
    ended: Collection[str],
    trainings: Mapping[tuple[str, str], StageReading],
) -> float | None:
    """Return the remaining seconds of the trainings of a sweep; None while no speed is known.

    The result is the larger of two times: that of the longest point, and that of all points divided by the number of
    concurrent points. A training that has not begun is assumed to be as fast as the median of its stage, or else of
    all trainings. Waits in the queue, conversions and evaluations are not counted.

    :param running: points that run
    :param ended: points whose runs have ended
    :param trainings: point and stage → its progress
    """
    speeds: dict[str, list[float]] = {}
    for (_, stage), reading in trainings.items():
        if reading.step_s:
            speeds.setdefault(stage, []).append(reading.step_s)
    if not speeds:
        return None
    usual = median(step for steps in speeds.values() for step in steps)

    def of_stage(point: str, stage: PlannedStage) -> float:
        reading = trainings.get((point, stage.name), StageReading())
        total = reading.train_iters or stage.train_iters or 0
        done = stage.from_iteration if reading.iteration is None else reading.iteration
        step = reading.step_s or median(speeds.get(stage.name, [usual]))
        return max(total - done, 0) * step

    left = [
        sum(of_stage(point.name, stage) for stage in point.stages if stage.trains)
        for point in planned.points
        if point.name not in ended
    ]
    return max(max(left), sum(left) / max(len(running), 1)) if left else 0.0
