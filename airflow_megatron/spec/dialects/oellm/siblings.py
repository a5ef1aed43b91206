"""Siblings among the points of an oellm-autoexp sweep: the same combination in another stage.

oellm-autoexp's rule (``dag_resolver.py``, c6d0cc0): the sibling of a point for ``${sibling.STAGE.…}`` has the same
``group_path`` after all positions are left out at which some point chooses a stage, and a stage whose name begins
with STAGE; the first one in the order of expansion is taken. Its later rule (branch ``hybrid_exp``, 16c771c) leaves a
position out only if the stage is chosen at it, and not if only a group inside it chooses one. It decides between
several points of the stage STAGE, and where the first rule finds none. Where both find none (stages in separate
groups of a list, as its README writes them), the sibling is the point of that stage that agrees on all swept values
that both have.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_megatron.spec.dialects.oellm.errors import SiblingError
from airflow_megatron.spec.dialects.oellm.sweep import STAGE
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.dialects.oellm.sweep import SweepPoint

Family: TypeAlias = tuple["SweepPoint", ...]
"""Points that refer to each other, each after those that it refers to."""

_REFERENCE = re.compile(r"\$\{\s*sibling\.([^.}]+)\.")


def sibling_references(value: Any) -> tuple[str, ...]:
    """Return the unique stages in ``${sibling.STAGE.…}`` of a value, in order."""
    return tuple(dict.fromkeys(_references(value)))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _REFERENCE.findall(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def stage_of(point: SweepPoint) -> str:
    """Return the stage of a point; empty without one."""
    stage = point.parameters.get(STAGE)
    return "" if stage is None else str(stage)


class Siblings:
    """The sibling relation of the points of one sweep.

    ``warnings`` holds, for each reference with several meanings, which one it has.
    """

    def __init__(self, points: Sequence[SweepPoint]) -> None:
        self.points = {point.index: point for point in points}
        self._masks = (
            _stage_mask([point.stage_path for point in points]),
            _stage_mask([point.own_stage_path for point in points]),
        )
        self._by_key: dict[tuple[int, tuple[int, ...]], list[SweepPoint]] = {}
        self._by_stage: dict[str, list[SweepPoint]] = {}
        self._found: dict[tuple[int, str], SweepPoint] = {}
        self.warnings: dict[str, str] = {}
        self._by_values: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], list[SweepPoint]]] = {}
        for point in points:
            for rule in range(len(self._masks)):
                self._by_key.setdefault((rule, self._key(point, rule)), []).append(point)
            self._by_stage.setdefault(stage_of(point), []).append(point)

    def find(self, point: SweepPoint, stage: str) -> SweepPoint:
        """Return the sibling of a point in a stage.

        :raises SiblingError: if there is none, or several agree equally
        """
        known = self._found.get((point.index, stage))
        if known is None:
            known = self._search(point, stage)
            self._found[point.index, stage] = known
        return known

    def _search(self, point: SweepPoint, stage: str) -> SweepPoint:
        first, later = (self._beginning_with(point, stage, rule) for rule in range(len(self._masks)))
        alike = [other for other in first if stage_of(other) == stage]
        if alike:
            indices = {other.index for other in later}
            return next((other for other in alike if other.index in indices), alike[0])
        beginning = first or later
        if not beginning:
            return self._by_swept_values(point, stage)
        names = list(dict.fromkeys(map(stage_of, beginning)))
        if stage in names:
            return next(other for other in beginning if stage_of(other) == stage)
        if len(names) > 1:
            self.warnings[f"sibling.{stage}."] = (
                f"${{sibling.{stage}.…}} is the beginning of {', '.join(names)}; {names[0]} is taken, as by "
                "oellm-autoexp"
            )
        return beginning[0]

    def _beginning_with(self, point: SweepPoint, stage: str, rule: int) -> list[SweepPoint]:
        """Return the siblings of a point by one rule whose stages begin with a text."""
        return [
            other
            for other in self._by_key[rule, self._key(point, rule)]
            if other.index != point.index and stage_of(other).startswith(stage)
        ]

    def _by_swept_values(self, point: SweepPoint, stage: str) -> SweepPoint:
        candidates = self._by_stage.get(stage, [])
        if not candidates:
            stages = [name for name in self._by_stage if name]
            hint = did_you_mean(stage, stages) or f"stages: {', '.join(stages) or 'none'}"
            raise SiblingError(f"there is no stage {stage!r} for ${{sibling.{stage}.…}}", point, hint, stage)
        shared = tuple(key for key in point.swept if all(key in other.swept for other in candidates))
        table = self._by_values.get((stage, shared))
        if table is None:
            table = {}
            for candidate in candidates:
                table.setdefault(_values(candidate, shared), []).append(candidate)
            self._by_values[stage, shared] = table
        matches = [
            other
            for other in table.get(_values(point, shared), ())
            if other.index != point.index and _agree(other, point)
        ]
        if len(matches) == 1:
            return matches[0]
        where = ", ".join(f"{key}={point.parameters[key]}" for key in shared) or "no swept value in common"
        raise SiblingError(
            f"point {point.index} has {len(matches) or 'no'} sibling{'s' * (len(matches) != 1)} in stage {stage!r} "
            f"({where})",
            point,
            "write the stages as configs of one group, beside the group of the other values in a product",
            stage,
        )

    def _key(self, point: SweepPoint, rule: int) -> tuple[int, ...]:
        return tuple(
            index
            for index, is_stage in itertools.zip_longest(point.group_path, self._masks[rule], fillvalue=False)
            if not is_stage
        )

    def families(self) -> list[Family]:
        """Return the points grouped by their references, groups in the order of their first point.

        :raises SiblingError: if a sibling does not exist or siblings refer to each other in a circle
        """
        needs = {
            index: [self.find(point, stage).index for stage in sibling_references(dict(point.parameters))]
            for index, point in self.points.items()
        }
        leader = {index: index for index in needs}

        def root(index: int) -> int:
            while leader[index] != index:
                leader[index] = leader[leader[index]]
                index = leader[index]
            return index

        for index, needed in needs.items():
            for other in needed:
                low, high = sorted((root(index), root(other)))
                leader[high] = low
        groups: dict[int, list[int]] = {}
        for index in needs:
            groups.setdefault(root(index), []).append(index)
        return [self._in_order(members, needs) for members in groups.values()]

    def _in_order(self, members: list[int], needs: dict[int, list[int]]) -> Family:
        if len(members) == 1:
            return (self.points[members[0]],)
        ordered: list[int] = []
        done: set[int] = set()
        for start in members:
            chain: list[int] = []
            stack: list[tuple[int, Iterator[int]]] = []
            if start not in done:
                stack, chain = [(start, iter(needs[start]))], [start]
            while stack:
                index, rest = stack[-1]
                following = next((other for other in rest if other not in done), None)
                if following is None:
                    stack.pop()
                    chain.pop()
                    done.add(index)
                    ordered.append(index)
                elif following in chain:
                    names = [
                        stage_of(self.points[other])
                        for other in (*chain[chain.index(following) :], following)
                    ]
                    message = f"stages wait for each other: {' → '.join(names)}"
                    raise SiblingError(message, self.points[index], stage=names[-1])
                else:
                    chain.append(following)
                    stack.append((following, iter(needs[following])))
        return tuple(self.points[index] for index in ordered)


def _stage_mask(paths: Sequence[tuple[bool, ...]]) -> tuple[bool, ...]:
    return tuple(map(any, itertools.zip_longest(*set(paths), fillvalue=False)))


def _agree(one: SweepPoint, other: SweepPoint) -> bool:
    return all(
        repr(one.parameters[key]) == repr(other.parameters[key]) for key in one.swept if key in other.swept
    )


def _values(point: SweepPoint, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(repr(point.parameters[key]) for key in keys)
