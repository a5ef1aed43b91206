"""Selection of a sweep's points by their names or values."""

from __future__ import annotations

import ast
import fnmatch
from typing import TYPE_CHECKING, Final

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


MAX_PATTERNS: Final = 1000
"""Maximum number of shell patterns of one choice."""
MAX_PATTERN: Final = 300
"""Maximum number of characters of a pattern: to parse one takes time in proportion to their square."""
_LONGEST_SHOWN: Final = 300


def choose_points(
    sweep: Sweep, choice: str, limit: int | None = None, *, beside: Sweep | None = None
) -> list[Point]:
    """Choose points of a sweep.

    :param choice: empty for all, an expression of a point's values (``{{ lr < 1e-2 }}``), or shell patterns of names,
        separated by commas (``S_*,M_lr0.001``)
    :param limit: at most this many, in document order
    :param beside: another sweep for which the same choice is made, and may match instead
    :raises SpecError: if nothing is chosen, a pattern matches no point, or the expression fails
    """
    points = list(sweep.points)
    choice = choice.strip()
    if is_template(choice):
        points = [point for point in points if _holds(sweep, point, choice)]
        if not points and not (beside and any(_holds(beside, point, choice) for point in beside.points)):
            raise _no_match(sweep, choice)
    elif choice:
        points = _named(sweep, choice, beside)
    return points[:limit] if limit else points


def _named(sweep: Sweep, choice: str, beside: Sweep | None) -> list[Point]:
    """Return the points whose names are in a list of names and shell patterns."""
    wanted = [name.strip() for name in choice.split(",") if name.strip()] or [choice]
    names = {point.name for point in sweep.points}
    others = {point.name for point in beside.points} if beside else set()
    patterns = [one for one in dict.fromkeys(wanted) if any(letter in one for letter in "*?[")]
    longest = max(map(len, patterns), default=0)
    if longest > MAX_PATTERN or len(patterns) > MAX_PATTERNS:
        message = f"patterns of points: {len(patterns):,}, the longest of {longest:,} characters"
        hint = f"at most {MAX_PATTERNS:,} of {MAX_PATTERN}, any number of names, or an expression: {{{{ lr < 1e-2 }}}}"
        raise SpecError(sweep.document.problem(("point",), message, hint))
    chosen = names.intersection(wanted)
    for one in wanted:
        if one in chosen or one in others:
            continue
        matched = fnmatch.filter(names, one) if one in patterns else []
        if not matched and not (one in patterns and fnmatch.filter(others, one)):
            raise _no_match(sweep, one)
        chosen.update(matched)
    return [point for point in sweep.points if point.name in chosen]


def _no_match(sweep: Sweep, choice: str) -> SpecError:
    names = [point.name for point in sweep.points]
    some = f"points: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"
    shown = _shown(choice)
    if not is_template(choice) and _compares(choice):
        hint = f'write an expression as "{{{{ {shown} }}}}"'
    elif not is_template(choice) and set(choice) & set("<> "):  # no name of a point contains them
        hint = 'write a condition as "{{ lr < 1e-2 and seed == 1 }}"'
    else:
        hint = did_you_mean(shown, names, limit=1, alike=0.8) or some
    return SpecError(sweep.document.problem(("point",), f"no point matches {shown!r}", hint))


def _compares(text: str) -> bool:
    """Return whether a text is a whole expression with a comparison or a logical operator."""
    if len(text) > MAX_PATTERN:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return any(isinstance(node, ast.Compare | ast.BoolOp | ast.Not) for node in ast.walk(tree))


def _holds(sweep: Sweep, point: Point, choice: str) -> bool:
    raw = sweep.names_of(point)
    try:
        given = {"sweep": sweep.name, "point": point.name}
        for name in sorted(template_names(choice) - raw.keys() - given.keys()):
            hint = did_you_mean(name, [*raw, *given])
            raise ExpressionError(
                f"{choice!r} uses {name!r}, which is not defined" + (f"; {hint}" if hint else "")
            )
        value = evaluate(choice, {**given, **resolve(raw, given, template_names(choice))})
        if isinstance(value, str):
            raise ExpressionError(f"{_shown(choice)!r} gives text ({_shown(value)!r}), not true or false")
        return bool(value)
    except ExpressionError as error:
        raise SpecError(sweep.document.problem(("point",), f"choosing points: {error}")) from error


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
