"""Points and stages of AutoExperiment files, derived from their jobs.

A named list whose items give different scripts, commands or conditions (``MODE: [- TRAIN: …, - CONVERT_EVAL: …]``)
chooses a stage, and so does every list inside such an item (``CD_SCALE`` inside ``COOLDOWN``). All other lists are
axes of the points. Where that does not distinguish the jobs, each job is a point of its own with one stage.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.model.sweep import Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.spec.dialects.autoexperiment.expansion import ExpandedJob
    from airflow_megatron.spec.dialects.autoexperiment.grammar import Axis, Choice
    from airflow_megatron.spec.documents.yaml_document import KeyPath

_STAGE_FIELDS = frozenset({"template", "cmd", "start_condition_cmd", "termination_cmd", "termination_str"})
_MAX_STAGES = 200
_MAX_POINT_NAME = 121
_FOLLOWS = re.compile(r"convert|eval", re.IGNORECASE)
ONLY_STAGE = "job"

StageKey = tuple[tuple[str, str], ...]
"""List key and label of each choice that leads to a stage."""
PointKey = tuple[tuple["KeyPath", int], ...]
"""List and item of each choice that leads to a point."""


@dataclass(frozen=True)
class StageOutline:
    """One stage of the file.

    :param key: the choices that lead to it
    :param name: its name
    :param parent: the stage that it is submitted after, or None
    :param head: the first stage of its group: the one whose checkpoints it works on, or itself
    :param waits: whether it has a start condition
    """

    key: StageKey
    name: str
    parent: str | None
    head: str
    waits: bool


class Outline:
    """The choices of a document that make points, and those that make stages.

    :param data: the document
    :param axes: its axes
    :param by_label: items called after conversion or evaluation, beside others, are stages too, although they name no
        script or condition of their own
    """

    def __init__(self, data: Any, axes: Sequence[Axis], *, by_label: bool = False) -> None:
        self.places = frozenset(_stage_lists(data, (), by_label))
        self._chooses: dict[KeyPath, bool] = {}
        # by identity: the jobs share their choices; each choice is kept, so that no other object gets its id
        self._parts: dict[int, tuple[Choice, tuple[str, str] | None]] = {}
        self.by_point = not self._ambiguous(axes)
        keys = self._stage_keys(axes) if self.by_point else [()]
        if len(keys) > _MAX_STAGES:
            self.by_point, keys = False, [()]
        self.stages = tuple(self._outlines(keys, self._waiting(axes) if self.by_point else _any_waits(axes)))
        self.names: Mapping[StageKey, str] = {stage.key: stage.name for stage in self.stages}

    def chooses_stage(self, choice: Choice) -> bool:
        """Return whether a choice leads to a stage rather than to a point."""
        known = self._chooses.get(choice.place)
        if known is None:
            parts = range(len(choice.place) + 1)
            known = self._chooses[choice.place] = any(choice.place[:part] in self.places for part in parts)
        return known

    def split(self, choices: Sequence[Choice]) -> tuple[list[Choice], StageKey]:
        """Return the choices that lead to a point, and the key of the stage that the others lead to."""
        if not self.by_point:
            return list(choices), ()
        own: list[Choice] = []
        stage: list[tuple[str, str]] = []
        for choice in choices:
            known = self._parts.get(id(choice))
            if known is None:
                part = (_list_key(choice.place), str(choice.label)) if self.chooses_stage(choice) else None
                known = self._parts[id(choice)] = choice, part
            if known[1] is not None:
                stage.append(known[1])
            else:
                own.append(choice)
        return own, tuple(stage)

    def _ambiguous(self, axes: Sequence[Axis]) -> bool:
        """Return whether two jobs would be the same stage of the same point."""
        return any(
            len({(self._point_part(choices), self._stage_part(choices)) for choices in axis.choices})
            < len(axis.choices)
            for axis in axes
        )

    def _point_part(self, choices: Sequence[Choice]) -> PointKey:
        return tuple((choice.place, choice.index) for choice in choices if not self.chooses_stage(choice))

    def _stage_part(self, choices: Sequence[Choice]) -> StageKey:
        return tuple(
            (_list_key(choice.place), str(choice.label)) for choice in choices if self.chooses_stage(choice)
        )

    def _stage_keys(self, axes: Sequence[Axis]) -> list[StageKey]:
        parts = [list(dict.fromkeys(self._stage_part(choices) for choices in axis.choices)) for axis in axes]
        count = 1
        for group in parts:
            count *= len(group)
            if count > _MAX_STAGES:
                return [()] * (_MAX_STAGES + 1)
        return [
            tuple(itertools.chain.from_iterable(combination)) for combination in itertools.product(*parts)
        ]

    def _waiting(self, axes: Sequence[Axis]) -> set[StageKey]:
        """Return the stages with jobs that may have a start condition."""
        conditions: list[list[tuple[StageKey, bool | None]]] = []
        for axis in axes:
            found: dict[StageKey, bool | None] = {}
            for flat, choices in zip(axis.flats, axis.choices, strict=True):
                key = self._stage_part(choices)
                text = flat.get("start_condition_cmd")
                found[key] = found.get(key) or (None if text is None else bool(text))
            conditions.append(list(found.items()))
        waiting: set[StageKey] = set()
        for combination in itertools.product(*conditions):
            answers = [answer for _, answer in combination if answer is not None]
            if answers and answers[-1]:
                waiting.add(tuple(itertools.chain.from_iterable(key for key, _ in combination)))
        return waiting

    def _outlines(self, keys: Sequence[StageKey], waiting: set[StageKey]) -> Iterator[StageOutline]:
        names = _stage_names(keys)
        lists = {_list_key(place) for place in self.places}
        groups: dict[StageKey, list[StageKey]] = {}
        for key in keys:
            groups.setdefault(_group(key, lists), []).append(key)
        heads = {group: _head(members, waiting) for group, members in groups.items()}
        root = next((key for key in keys if key not in waiting), keys[0])
        made: dict[StageKey, StageOutline] = {}
        for key in keys:
            head = heads[_group(key, lists)]
            parent = None if key not in waiting else head if key != head else root
            made[key] = StageOutline(
                key,
                names[key],
                names[parent] if parent not in (None, key) else None,
                names[head],
                key in waiting,
            )
        yield from _parents_first(list(made.values()))


def _list_key(place: KeyPath) -> str:
    """Return the key of a list; empty if the document itself is a list."""
    return str(place[-1]) if place else "item"


def _any_waits(axes: Sequence[Axis]) -> set[StageKey]:
    return {()} if any(flat.get("start_condition_cmd") for axis in axes for flat in axis.flats) else set()


def _stage_lists(node: Any, path: KeyPath, by_label: bool) -> Iterator[KeyPath]:
    """Yield the places of the named lists that choose a stage, outermost only."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _stage_lists(value, (*path, key), by_label)
    elif isinstance(node, list) and node and isinstance(node[0], dict):
        fields = [tuple(sorted(_fields(item))) for item in node]
        if (
            len(set(fields)) > 1
            or (len(fields) == 1 and fields[0])
            or (by_label and _follow_each_other(node))
        ):
            yield path
        for index, item in enumerate(node):
            yield from _stage_lists(item, (*path, index), by_label)


def _follow_each_other(items: Sequence[Any]) -> bool:
    """Return whether some items of a list are called after conversion or evaluation, and some are not."""
    labels = [str(next(iter(item), "")) for item in items if isinstance(item, dict)]
    return len({bool(_FOLLOWS.search(label)) for label in labels}) == 2


def _fields(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the script, command and condition texts below a node."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        if key in _STAGE_FIELDS and not isinstance(value, dict | list):
            yield str(key), str(value)
        else:
            yield from _fields(value)


def _group(key: StageKey, lists: set[str]) -> StageKey:
    """Return a stage's key without its last choice of a script or command."""
    for index in range(len(key) - 1, -1, -1):
        if key[index][0] in lists:
            return key[:index] + key[index + 1 :]
    return key


def _head(members: Sequence[StageKey], waiting: set[StageKey]) -> StageKey:
    works = [key for key in members if not (key and _FOLLOWS.search(key[-1][1]))] or list(members)
    return next((key for key in works if key not in waiting), works[0])


def _parents_first(stages: Sequence[StageOutline]) -> Iterator[StageOutline]:
    by_name = {stage.name: stage for stage in stages}
    done: set[str] = set()
    for stage in stages:
        chain = [stage]
        while chain[-1].parent and chain[-1].parent not in done and len(chain) <= len(stages):
            chain.append(by_name[chain[-1].parent])
        for member in reversed(chain):
            if member.name not in done:
                done.add(member.name)
                yield member


def _stage_names(keys: Sequence[StageKey]) -> dict[StageKey, str]:
    names: dict[StageKey, str] = {}
    used: Counter[str] = Counter()
    taken: set[str] = set()
    for key in keys:
        words = [re.sub(r"[^A-Za-z0-9_-]", "-", label.replace(".", "p")) for _, label in key]
        name = re.sub(r"^[^A-Za-z0-9]+", "", "_".join(word for word in words if word))[:90] or ONLY_STAGE
        used[name] += 1
        own = name if used[name] == 1 else f"{name}-{used[name]}"
        while own in taken:
            used[name] += 1
            own = f"{name}-{used[name]}"
        taken.add(own)
        names[key] = own
    return names


def points_of(outline: Outline, jobs: Sequence[ExpandedJob]) -> list[tuple[Point, dict[str, ExpandedJob]]]:
    """Return the points in document order, each with its jobs by stage."""
    groups: dict[PointKey, dict[str, ExpandedJob]] = {}
    labels: dict[PointKey, list[Choice]] = {}
    seen: dict[KeyPath, set[int]] = {}
    for job in jobs:
        own, stage_key = outline.split(job.choices)
        key = tuple((choice.place, choice.index) for choice in own)
        stage = outline.names[stage_key]
        if key not in groups:
            groups[key], labels[key] = {}, own
            for choice in own:
                seen.setdefault(choice.place, set()).add(choice.index)
        groups[key][stage] = job
    varying = {place for place, items in seen.items() if len(items) > 1}
    points: list[tuple[Point, dict[str, ExpandedJob]]] = []
    used: set[str] = set()
    for number, (key, stages) in enumerate(groups.items(), 1):
        chosen = [choice for choice in labels[key] if choice.place in varying]
        name = _point_name(chosen, number, used)
        used.add(name)
        values = {_list_key(choice.place): choice.label for choice in chosen}
        points.append((Point(name, values, tuple(values)), stages))
    return points


def _point_name(chosen: Sequence[Choice], number: int, used: set[str]) -> str:
    words = [
        str(choice.label) if choice.named else f"{_list_key(choice.place)}={choice.label}"
        for choice in chosen
    ]
    name = re.sub(r"[^A-Za-z0-9._=+-]", "-", "_".join(words)) or "point"
    if not name[0].isalnum():
        name = f"p{name}"
    if len(name) > _MAX_POINT_NAME:
        name = f"{name[: _MAX_POINT_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    if name not in used:
        return name
    suffix = f"-{number}"
    name = name[: _MAX_POINT_NAME - len(suffix) - 1] + suffix
    while name in used:
        name += "x"
    return name
