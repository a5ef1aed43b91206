"""Choosing some of a sweep's points, by their names or their values."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.errors import SpecError, did_you_mean
from airflow_megatron.spec.expressions.resolution import (
    ExpressionError,
    evaluate,
    is_template,
    resolve,
    template_names,
)

if TYPE_CHECKING:
    from airflow_megatron.spec.model.sweep import Point, Sweep


def choose_points(sweep: Sweep, choice: str, limit: int | None = None) -> list[Point]:
    """Choose points of a sweep.

    :param choice: empty for all, an expression on a point's values (``{{ lr < 1e-2 }}``), or shell patterns on names
        separated by commas (``S_*,M_lr0.001``)
    :param limit: at most this many, in document order
    :raises SpecError: if nothing is chosen or the expression fails
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
