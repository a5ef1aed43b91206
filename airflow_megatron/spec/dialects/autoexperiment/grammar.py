"""The grammar of AutoExperiment files: mappings multiply, named lists add, and everything ends flat.

A document becomes jobs, each a flat mapping of keys to values, in the tool's order (the last key varies fastest):

- a list of plain values is one alternative for each value;
- a list of one-key mappings (a named list) is the alternatives of all its items, one after the other;
- a mapping is the product of its keys' alternatives.

A value at ``a → b → c`` gives ``a: "b"``, ``b: "c"`` and ``c: value``, so an item's name is the value of its list's
key, and is itself a key whose value is the name of its last one. Of values with the same key the last in the
document wins. Rules from SLAMPAI/autoexperiment, ``autoexperiment/template.py`` (revision 3093b6b).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.dialects.autoexperiment.resolution import is_changeable, names_read
from airflow_megatron.spec.documents.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

MAX_JOBS = 250_000
MAX_VALUES = 20_000_000
"""Values of all jobs together."""


@dataclass(frozen=True)
class Choice:
    """One item taken from a list of the document.

    :param place: where the list is
    :param index: which item
    :param label: the item's name, or its value
    :param named: whether the list is a named list
    """

    place: KeyPath
    index: int
    label: Any
    named: bool


@dataclass
class Axis:
    """One key of the document with alternatives, or consecutive keys without alternatives.

    :param flats: the values that each alternative gives, flat
    :param choices: the items that each alternative takes
    :param shapes: a number for each alternative; equal where texts are resolved in the same way
    """

    flats: list[dict[str, Any]]
    choices: list[tuple[Choice, ...]]
    shapes: list[int] = field(default_factory=list)


def document_axes(document: YamlDocument) -> list[Axis]:
    """Return the axes whose product is the jobs of a document; the last varies fastest.

    :raises SpecError: on values that the grammar has no place for, and when there are too many jobs or none
    """
    data = document.data
    problems = list(_wrong_values(data, (), document))
    if not isinstance(data, dict) and not (isinstance(data, list) and _is_named_list(data)):
        problems.append(document.problem((), "expected keys with values", "write name: …"))
    if problems:
        raise SpecError(problems)
    _check_count(document)
    groups = (
        [[made.below(key) for made in _alternatives(value, (key,))] for key, value in data.items()]
        if isinstance(data, dict)
        else [_alternatives(data, ())]
    )
    axes: list[Axis] = []
    joined = False
    for group in groups:
        flats = [alternative.flat() for alternative in group]
        choices = [alternative.choices for alternative in group]
        _check_keys(flats, document)
        if joined and len(group) == 1:
            axes[-1].flats[0].update(flats[0])
            axes[-1].choices[0] += choices[0]
        else:
            axes.append(Axis(flats, choices))
        joined = len(group) == 1
    _number_shapes(axes)
    return axes


@dataclass(frozen=True)
class _Alternative:
    """One assignment of values to the keys below a place.

    :param leaves: key path and value, in document order
    :param choices: the items taken
    """

    leaves: tuple[tuple[tuple[Any, ...], Any], ...]
    choices: tuple[Choice, ...] = ()

    def below(self, key: Any) -> _Alternative:
        return _Alternative(tuple(((key, *path), value) for path, value in self.leaves), self.choices)

    def flat(self) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for path, value in self.leaves:
            params.update(itertools.pairwise(path))
            params[path[-1]] = value
        return params


def _wrong_values(node: Any, path: KeyPath, document: YamlDocument) -> Iterator[Problem]:
    if node is None:
        yield document.problem(path, "a key without a value", 'write a value; "" is the empty text')
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _wrong_values(value, (*path, key), document)
    elif isinstance(node, list):
        plain = all(_is_plain(item) for item in node)
        if not plain and not _is_named_list(node):
            hint = "one or the other: [1, 2], or '- name: {key: value}' with one name in each item"
            yield document.problem(path, "a list holds neither plain values nor named items only", hint)
            return
        for index, item in enumerate(node):
            yield from _wrong_values(item, (*path, index), document)


def _is_plain(node: Any) -> bool:
    return isinstance(node, str | int | float)


def _is_named_list(node: list[Any]) -> bool:
    return all(isinstance(item, dict) and len(item) == 1 for item in node)


def _check_count(document: YamlDocument) -> None:
    count = _count(document.data)
    if count > MAX_JOBS or count * _leaves(document.data) > MAX_VALUES:
        raise SpecError(
            document.problem((), f"{count:,} jobs are more than are expanded", "split the file into several")
        )
    if count == 0:
        empty = next(iter(empty_lists(document.data)))
        where = ".".join(str(part) for part in empty) or "the document"
        raise SpecError(
            document.problem(
                empty, f"{where} is empty, so there is no job at all", "give it a value or drop it"
            )
        )


def _count(node: Any) -> int:
    if isinstance(node, dict):
        return math.prod(_count(value) for value in node.values())
    if isinstance(node, list):
        return sum(_count(item) for item in node)
    return 1


def _leaves(node: Any) -> int:
    if isinstance(node, dict):
        return sum(_leaves(value) for value in node.values())
    if isinstance(node, list):
        return max((_leaves(item) for item in node), default=0)
    return 1


def empty_lists(node: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the places of empty lists."""
    if isinstance(node, list) and not node:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from empty_lists(value, (*path, key))


def _alternatives(node: Any, place: KeyPath) -> list[_Alternative]:
    if isinstance(node, dict):
        if not _count(node):
            return []
        groups = [
            [alternative.below(key) for alternative in _alternatives(value, (*place, key))]
            for key, value in node.items()
        ]
        return [_joined(parts) for parts in itertools.product(*groups)]
    if isinstance(node, list):
        return [
            _Alternative(made.leaves, (Choice(place, index, label, named), *made.choices))
            for index, item in enumerate(node)
            for label, named, made in _items(item, (*place, index))
        ]
    return [_Alternative((((), node),))]


def _items(item: Any, place: KeyPath) -> Iterator[tuple[Any, bool, _Alternative]]:
    """Yield the alternatives of one item of a list, with its label."""
    if isinstance(item, dict):
        ((name, value),) = item.items()
        for made in _alternatives(value, (*place, name)):
            yield name, True, made.below(name)
    else:
        yield item, False, _Alternative((((), item),))


def _joined(parts: Sequence[_Alternative]) -> _Alternative:
    if len(parts) == 1:
        return parts[0]
    return _Alternative(
        tuple(itertools.chain.from_iterable(part.leaves for part in parts)),
        tuple(itertools.chain.from_iterable(part.choices for part in parts)),
    )


def _number_shapes(axes: Sequence[Axis]) -> None:
    """Number the alternatives; equal ones have equal texts and equal values of all keys in texts."""
    texts = [
        [{key: value for key, value in flat.items() if is_changeable(value)} for flat in axis.flats]
        for axis in axes
    ]
    concerned = {
        name
        for group in texts
        for made in group
        for key, text in made.items()
        for name in (key, *names_read(text))
    }
    for axis, group in zip(axes, texts, strict=True):
        numbers: dict[Any, int] = {}
        for flat, made in zip(axis.flats, group, strict=True):
            shape = frozenset(key for key in flat if key in concerned), frozenset(made.items())
            axis.shapes.append(numbers.setdefault(shape, len(numbers)))


def _check_keys(flats: Sequence[Mapping[Any, Any]], document: YamlDocument) -> None:
    keys = {key for flat in flats for key in flat if not isinstance(key, str)}
    problems = [
        document.problem(
            document.last_place(key),
            f"the key {key!r} is not a text, so no text can be replaced",
            "quote it",
        )
        for key in keys
    ]
    if problems:
        raise SpecError(problems)
