"""Findings of the checks before submission, reported once for each stage instead of once for each point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep


@dataclass(frozen=True)
class Finding:
    """A property of one job that cannot work, or is probably a mistake.

    :param rule: short name of the violated rule; the same rule at other points of the stage is only counted
    :param job: the job
    :param keys: the parameter that causes it, or a path in the stage's section (``start``, ``checkpoint``)
    :param message: what is wrong, without the names of stage and point
    :param hint: what to write instead
    :param warning: whether the sweep can run nevertheless, because the value may be intended
    """

    rule: str
    job: Job
    keys: tuple[str, ...]
    message: str
    hint: str
    warning: bool = False


def problems_of(findings: Iterable[Finding], sweep: Sweep) -> tuple[list[Problem], list[Problem]]:
    """Return errors and warnings with their positions in the sweep's document."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.rule, finding.job.stage), []).append(finding)
    sections = {instance.name: instance.stage for instance in sweep.tree}
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for group in alike.values():
        first = group[0]
        points = dict.fromkeys(finding.job.point for finding in group)
        where = f"stage {first.job.stage}" + (f" at point {first.job.point}" if first.job.point else "")
        others = len(points) - 1
        more = f"; the same at {others} more point{'s' if others > 1 else ''}" if others else ""
        place = _place(sweep, sections.get(first.job.stage, first.job.stage), first)
        problem = sweep.document.problem(place, f"{where}: {first.message}{more}", first.hint)
        (warnings if first.warning else errors).append(problem)
    return errors, warnings


def _place(sweep: Sweep, section: str, finding: Finding) -> KeyPath:
    if len(finding.keys) == 1:
        return sweep.place_of(finding.job.stage, finding.keys[0])
    of_stage: KeyPath = ("stages", section, *finding.keys)
    places = sweep.document.positions
    if ("stages",) not in places:  # a file of another tool
        return sweep.place_of(finding.job.stage, finding.keys[-1])
    return next((path for path in (of_stage, finding.keys) if path in places), ("stages", section))
