"""Findings of the checks before submission, reported once for each stage instead of once for each point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


@dataclass
class AlikeFindings:
    """The findings of one rule in one stage: the first one, and the number of points.

    :param point: of the first one's job, empty for a job of the whole sweep
    :param points: the number of points
    :param of_sweep: whether a job of the whole sweep has it
    """

    stage: str
    point: str
    keys: tuple[str, ...]
    message: str
    hint: str
    warning: bool
    points: int
    of_sweep: bool

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> AlikeFindings:
        """Describe findings of one rule in one stage."""
        first = findings[0]
        points = {finding.job.point for finding in findings}
        return cls(
            *(first.job.stage, first.job.point, first.keys, first.message, first.hint, first.warning),
            points=len(points - {""}),
            of_sweep="" in points,
        )

    def problem(self, sweep: Sweep) -> Problem:
        """Return the problem that is reported for them."""
        where = f"stage {self.stage}" + (f" at point {self.point}" if self.point else "")
        others = self.points + self.of_sweep - 1
        more = f"; the same at {others} more point{'s' if others > 1 else ''}" if others else ""
        return sweep.document.problem(self._place(sweep), f"{where}: {self.message}{more}", self.hint)

    def _place(self, sweep: Sweep) -> KeyPath:
        if len(self.keys) == 1:
            return sweep.place_of(self.stage, self.keys[0])
        section = next((instance.stage for instance in sweep.tree if instance.name == self.stage), self.stage)
        of_stage: KeyPath = ("stages", section, *self.keys)
        places = sweep.document.positions
        if ("stages",) not in places:  # a file of another tool
            return sweep.place_of(self.stage, self.keys[-1])
        return next((path for path in (of_stage, self.keys) if path in places), ("stages", section))


def alike_findings(findings: Iterable[Finding]) -> dict[tuple[str, str], AlikeFindings]:
    """Return the findings by rule and stage, in the order of the first ones."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.rule, finding.job.stage), []).append(finding)
    return {key: AlikeFindings.of(group) for key, group in alike.items()}


def problems_of(findings: Iterable[Finding], sweep: Sweep) -> tuple[list[Problem], list[Problem]]:
    """Return errors and warnings with their positions in the sweep's document."""
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for alike in alike_findings(findings).values():
        (warnings if alike.warning else errors).append(alike.problem(sweep))
    return errors, warnings
