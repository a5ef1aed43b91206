"""Differences between two plans: points that appear or vanish, and parameters that change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.model.jobs import Job

ABSENT = "(none)"


@dataclass(frozen=True)
class Change:
    """One value of a stage's jobs that differs in the new plan.

    :param stage: name of the stage instance
    :param name: a parameter, ``slurm.time``, or one of ``command``, ``start``, ``cancel``, …
    :param old: old value, :data:`ABSENT` without one
    :param new: new value
    :param points: names of the points with this change
    """

    stage: str
    name: str
    old: Any
    new: Any
    points: tuple[str, ...]


@dataclass(frozen=True)
class PlanDifference:
    """The difference of two plans.

    :param appeared: points of the new plan only
    :param vanished: points of the old plan only
    :param stages_appeared: stage instances of the new plan only
    :param stages_vanished: stage instances of the old plan only
    :param changes: values that differ at points of both
    :param unchanged: number of points of both with no change
    """

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]
    stages_appeared: tuple[str, ...]
    stages_vanished: tuple[str, ...]
    changes: tuple[Change, ...]
    unchanged: int

    def __bool__(self) -> bool:
        return bool(
            self.appeared or self.vanished or self.stages_appeared or self.stages_vanished or self.changes
        )

    def to_json(self) -> dict[str, Any]:
        """Return the output of ``diff --format json``."""
        return {
            "points_appeared": list(self.appeared),
            "points_vanished": list(self.vanished),
            "points_unchanged": self.unchanged,
            "stages_appeared": list(self.stages_appeared),
            "stages_vanished": list(self.stages_vanished),
            "changes": [{**vars(change), "points": list(change.points)} for change in self.changes],
        }


def plan_difference(old: Plan, new: Plan) -> PlanDifference:
    """Compare two plans by the names of points and stages."""
    before, after = ({(job.point, job.stage): job for job in plan.jobs} for plan in (old, new))
    # a renamed sweep has different directories, which are not changes of values
    directories = (_sweep_dir(old), _sweep_dir(new))
    found: dict[tuple[str, str, str, str], list[str]] = {}
    shown: dict[tuple[str, str, str, str], tuple[Any, Any]] = {}
    changed: set[str] = set()
    for place, job in after.items():
        other = before.get(place)
        if other is None:
            continue
        ours, theirs = _values(job), _values(other)
        for name in dict.fromkeys((*theirs, *ours)):
            pair = (_moved(theirs.get(name, ABSENT), *directories), ours.get(name, ABSENT))
            if pair[0] != pair[1]:
                key = (job.stage, name, repr(pair[0]), repr(pair[1]))
                found.setdefault(key, []).append(job.point)
                shown[key] = pair
                changed.add(job.point)
    common = [point for point in new.points if point in set(old.points)]
    stages = [list(dict.fromkeys(stage for _, stage in places)) for places in (before, after)]
    if not (
        old.points and new.points
    ):  # a selection that one of the sweeps lacks says nothing about its stages
        stages = [[], []]
    return PlanDifference(
        appeared=_only(new.points, old.points),
        vanished=_only(old.points, new.points),
        stages_appeared=_only(stages[1], stages[0]),
        stages_vanished=_only(stages[0], stages[1]),
        changes=tuple(Change(key[0], key[1], *shown[key], tuple(points)) for key, points in found.items()),
        unchanged=sum(point not in changed for point in common),
    )


def _only(names: tuple[str, ...] | list[str], others: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    there = set(others)
    return tuple(name for name in dict.fromkeys(names) if name not in there)


def _values(job: Job) -> Mapping[str, Any]:
    """Return all values of a job that a user sets."""
    slurm = job.slurm.model_dump(exclude_none=True, exclude_defaults=True)
    values: dict[str, Any] = {
        **job.params,
        **{f"slurm.{name}": value for name, value in slurm.items() if name not in job.params},
        **{f"env.{name}": value for name, value in job.env.items()},
        **{f"restart.{name}": value for name, value in job.restart.model_dump().items()},
        **{
            f"health.{detector}.{name}": value
            for detector, rules in (job.health.model_dump() if job.health else {}).items()
            for name, value in rules.items()
        },
        "start": ", ".join(f"{item.stage} {item.to_plan()['until']}" for item in job.depends_on),
        "run_dir": job.run_dir,
    }
    for name in ("start", "cancel", "finish"):
        if getattr(job, name) is not None:
            values[name] = str(getattr(job, name))
    if job.array is not None:
        values["array"] = job.array
    if job.events:
        values["events"] = [event.to_json() for event in job.events]
    if job.stage_kind.needs_command:
        values["command"] = list(job.command)
    for name in ("template", "script"):
        if getattr(job, name) is not None:
            values[name] = getattr(job, name)
    return values


def _sweep_dir(plan: Plan) -> str:
    for job in plan.jobs:
        head, found, _ = job.run_dir.partition(f"/{plan.sweep}/")
        if found:
            return f"{head}/{plan.sweep}/"
    return ""


def _moved(value: Any, old: str, new: str) -> Any:
    """Return a value with the old sweep's directory replaced by the new one's."""
    if not old or old == new:
        return value
    if isinstance(value, str):
        return value.replace(old, new)
    return [_moved(item, old, new) for item in value] if isinstance(value, list) else value
