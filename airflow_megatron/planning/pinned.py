"""A sweep as one of its runs has pinned it: the spec's text and what was chosen, small enough for an XCom."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.planning.plan import Plan, job_digest, plan_sweep
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.spec.errors import SpecError, did_you_mean
from airflow_megatron.spec.expressions import ExpressionError, evaluate, is_template, resolve, template_names
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.spec.sweep import Point, Sweep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.jobs import Job
    from airflow_megatron.spec.sweep import Point, Sweep


@dataclass(frozen=True)
class PinnedSweep:
    """What a run of a sweep works on, whatever happens to the spec file meanwhile.

    :param file: the spec file, for messages
    :param text: its content
    :param cluster: name of the cluster profile
    :param points: names of the chosen points
    :param digest: of the plan
    :param sources: path → content of the other files that the spec draws on
    """

    file: str
    text: str
    cluster: str
    points: tuple[str, ...]
    digest: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def plan(self) -> Plan:
        """Return the plan again."""
        sweep = load_sweep_text(self.text, self.file, self.sources)
        wanted = set(self.points)
        chosen = [point for point in sweep.points if point.name in wanted]
        return plan_sweep(sweep, load_cluster(self.cluster), chosen)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "points": list(self.points)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PinnedSweep:
        """Return what :meth:`to_json` described."""
        return cls(**{**data, "points": tuple(data["points"])})


def choose_points(sweep: Sweep, choice: str, limit: int | None = None) -> list[Point]:
    """Choose points of a sweep.

    :param choice: empty for all, an expression on a point's values (``{{ lr < 1e-2 }}``), or shell patterns on names
        separated by commas (``S_*,M_lr0.001``)
    :param limit: at most this many, in document order
    :raises SpecError: when nothing is chosen or the expression fails
    """
    points = list(sweep.points)
    choice = choice.strip()
    if is_template(choice):
        points = [point for point in points if _holds(sweep, point, choice)]
    elif choice:
        patterns = [pattern.strip() for pattern in choice.split(",") if pattern.strip()]
        points = [point for point in points if any(fnmatch.fnmatchcase(point.name, one) for one in patterns)]
    if not points:
        some = ", ".join(point.name for point in sweep.points[:8])
        raise SpecError(
            sweep.document.problem(("point",), f"no point matches {choice!r}", f"points: {some} …")
        )
    return points[:limit] if limit else points


def point_digest(jobs: list[Job]) -> str:
    """Return a digest of everything that the jobs of a point compute."""
    text = json.dumps([[job.stage, job_digest(job)] for job in jobs])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _holds(sweep: Sweep, point: Point, choice: str) -> bool:
    raw = sweep.names_of(point)
    try:
        given = {"sweep": sweep.name, "point": point.name}
        for name in sorted(template_names(choice) - raw.keys() - given.keys()):
            hint = did_you_mean(name, [*raw, *given])
            raise ExpressionError(
                f"{choice!r} uses {name!r}, which is not defined" + (f"; {hint}" if hint else "")
            )
        return bool(evaluate(choice, {**given, **resolve(raw, given, template_names(choice))}))
    except ExpressionError as error:
        raise SpecError(sweep.document.problem(("point",), f"choosing points: {error}")) from error
