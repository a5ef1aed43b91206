"""The grammar of a ``sweep:`` block: products and lists of groups, nested at any depth.

Documented by the README of oellm-autoexp (fa63a6d), whose implementation refuses most of it. A block or a group may
hold

* ``params: {key: [values]}``: the product of its keys, the last key varying fastest;
* ``grids: [{key: [values]}, …]``: several such products, one after the other;
* ``configs: [{key: value}, …]``: hand-picked combinations; an element that is itself a group is expanded;
* ``groups: [group, …]``: nested groups;
* bare ``key: [values]`` entries, read as ``params``;
* ``type: product|list``: how its parts are combined (default ``product``);
* ``base_values`` and ``defaults``: values for every combination below, ``base_values`` weakest;
* ``filter``: an expression; combinations for which it is false are dropped;
* ``list_composition: [key, …]``: keys whose values are collected into one list instead of being overridden.

Merge order: base_values < defaults of outer groups < defaults of inner groups < the combination's own values;
across a product, later groups override earlier ones.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

PARTS = ("groups", "params", "configs", "grids")
WORDS = frozenset({*PARTS, "type", "base_values", "defaults", "filter", "list_composition"})

MAX_COMBINATIONS: Final = 1_000_000
"""Combinations of one sweep, before its filters."""

Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination of swept values, before expressions are evaluated.

    :param values: key → value, defaults merged in
    :param filters: the ``filter`` expressions of all groups that it came through, outermost first
    :param swept: the keys that vary (not those that only came from defaults)
    """

    values: Values
    filters: tuple[str | bool, ...] = ()
    swept: frozenset[str] = frozenset()


def expand_sweep(block: Any, document: YamlDocument, path: KeyPath = ("sweep",)) -> Iterator[Combination]:
    """Expand a ``sweep:`` block; ``None`` gives the one empty combination.

    :raises SpecError: naming file, line and hint for every malformed group, or when there are too many combinations
    """
    if block is None:
        return iter([Combination({})])
    count = count_combinations(block, document, path)
    if count > MAX_COMBINATIONS:
        hint = "a sweep of this size cannot be run; take some axes out"
        raise SpecError(
            document.problem(path, f"{count} combinations; at most {MAX_COMBINATIONS} are allowed", hint)
        )
    return _expand_group(block, ())


def count_combinations(block: Any, document: YamlDocument, path: KeyPath = ("sweep",)) -> int:
    """Return how many combinations a group has before its filters, checking it without expanding it.

    :raises SpecError: naming file, line and hint for every malformed group
    """
    _check_group(block, document, path)
    counts: list[int] = []
    for index, group in enumerate(block.get("groups") or ()):
        counts.append(count_combinations(group, document, (*path, "groups", index)))
    if "params" in block:
        counts.append(_count_values(block["params"], document, (*path, "params")))
    if "grids" in block:
        counts.append(
            sum(
                _count_values(grid, document, (*path, "grids", index))
                for index, grid in enumerate(_as_list(block["grids"]))
            )
        )
    if "configs" in block:
        counts.append(
            sum(
                _count_config(config, document, (*path, "configs", index))
                for index, config in enumerate(block["configs"])
            )
        )
    bare = _bare_values(block)
    if bare:
        counts.append(_count_values(bare, document, path))
    return sum(counts) if block.get("type") == "list" else math.prod(counts)


def swept_keys(block: Any) -> list[str]:
    """Return every key that a ``sweep:`` block assigns, in document order, without expanding or checking it."""
    keys: dict[str, None] = {}

    def walk(node: Any) -> None:
        if not isinstance(node, dict):
            return
        for word in ("base_values", "defaults", "params"):
            keys.update(dict.fromkeys(_mapping(node.get(word))))
        for grid in _as_list(node.get("grids")):
            keys.update(dict.fromkeys(_mapping(grid)))
        for config in _as_list(node.get("configs")):
            if _is_group(config):
                walk(config)
            else:
                keys.update(dict.fromkeys(_mapping(config)))
        for group in _as_list(node.get("groups")):
            walk(group)
        keys.update(dict.fromkeys(_bare_values(node)))

    walk(block)
    return list(keys)


def unset_compositions(block: Any, path: KeyPath = ("sweep",)) -> Iterator[tuple[KeyPath, str, list[str]]]:
    """Yield the keys of ``list_composition`` that no group within its own sets, with their places and the keys set.

    :param block: a ``sweep:`` block that has been checked
    """
    if not isinstance(block, dict):
        return
    keys = swept_keys(block)
    for index, key in enumerate(block.get("list_composition") or ()):
        if key not in keys:
            yield (*path, "list_composition", index), key, keys
    for word in ("groups", "configs"):
        for index, group in enumerate(_as_list(block.get(word) or [])):
            if word == "groups" or _is_group(group):
                yield from unset_compositions(group, (*path, word, index))


def _mapping(value: Any) -> Values:
    return value if isinstance(value, dict) else {}


def _is_group(node: Any) -> bool:
    return isinstance(node, dict) and any(word in node for word in PARTS)


def _bare_values(node: Values) -> Values:
    return {key: value for key, value in node.items() if key not in WORDS}


def _expand_group(node: Values, composed: tuple[str, ...]) -> Iterator[Combination]:
    composed = (*composed, *(node.get("list_composition") or ()))
    parts: list[list[Combination]] = [
        list(_expand_group(group, composed)) for group in node.get("groups") or ()
    ]
    if "params" in node:
        parts.append(_product_of_values(node["params"]))
    if "grids" in node:
        parts.append([item for grid in _as_list(node["grids"]) for item in _product_of_values(grid)])
    if "configs" in node:
        parts.append(list(_expand_configs(node["configs"], composed)))
    bare = _bare_values(node)
    if bare:
        parts.append(_product_of_values(bare))
    combined = (
        itertools.chain.from_iterable(parts)
        if node.get("type") == "list"
        else (_merge(choice, composed) for choice in itertools.product(*parts))
    )
    shared = {**(node.get("base_values") or {}), **(node.get("defaults") or {})}
    filters = (node["filter"],) if "filter" in node else ()
    if not shared and not filters:
        yield from combined
        return
    for combination in combined:
        yield Combination(
            _merge_values([shared, combination.values], composed),
            filters + combination.filters,
            combination.swept,
        )


def _expand_configs(configs: Sequence[Any], composed: tuple[str, ...]) -> Iterator[Combination]:
    for config in configs:
        if _is_group(config):
            yield from _expand_group(config, composed)
        else:
            yield Combination(dict(config), swept=frozenset(config))


def _count_config(config: Any, document: YamlDocument, path: KeyPath) -> int:
    if _is_group(config):
        return count_combinations(config, document, path)
    if not isinstance(config, dict):
        raise SpecError(document.problem(path, "a config is a mapping of values", "write {lr: 1e-3, …}"))
    return 1


def _product_of_values(values: Values) -> list[Combination]:
    keys = list(values)
    swept = frozenset(keys)
    return [
        Combination(dict(zip(keys, choice, strict=True)), swept=swept)
        for choice in itertools.product(*(_as_list(axis) for axis in values.values()))
    ]


def _count_values(values: Any, document: YamlDocument, path: KeyPath) -> int:
    if not isinstance(values, dict):
        raise SpecError(
            document.problem(path, "expected keys with lists of values", "write lr: [1e-3, 1e-4]")
        )
    for key, axis in values.items():
        if isinstance(axis, dict):
            known = did_you_mean(key, sorted(WORDS)) or ", ".join(sorted(WORDS))
            raise SpecError(
                document.problem(
                    (*path, key), f"{key!r} is neither a list of values nor a word of the grammar", known
                )
            )
        if axis == []:
            raise SpecError(
                document.problem(
                    (*path, key), f"{key!r} has no values, which makes no point", "give one or drop it"
                )
            )
    return math.prod(len(_as_list(axis)) for axis in values.values())


def _merge(choice: Sequence[Combination], composed: tuple[str, ...]) -> Combination:
    if len(choice) == 1:
        return choice[0]
    return Combination(
        _merge_values([part.values for part in choice], composed),
        tuple(itertools.chain.from_iterable(part.filters for part in choice)),
        frozenset().union(*(part.swept for part in choice)),
    )


def _merge_values(layers: Sequence[Values], composed: tuple[str, ...]) -> Values:
    merged: Values = {}
    for layer in layers:
        if not composed:
            merged.update(layer)
            continue
        for key, value in layer.items():
            if key in composed and key in merged:
                merged[key] = [*_as_list(merged[key]), *_as_list(value)]
            else:
                merged[key] = value
    return merged


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_group(node: Any, document: YamlDocument, path: KeyPath) -> None:
    problems: list[Problem] = []
    if not isinstance(node, dict):
        raise SpecError(document.problem(path, "a group is a mapping", f"use one of {', '.join(PARTS)}"))
    for word in ("groups", "configs"):
        if word in node and (not isinstance(node[word], list) or not node[word]):
            problems.append(
                document.problem(
                    (*path, word), f"{word!r} takes a list that is not empty", "start items with '- '"
                )
            )
    for word in ("base_values", "defaults"):
        if not isinstance(node.get(word) or {}, dict):
            problems.append(document.problem((*path, word), f"{word!r} takes keys with values"))
    if node.get("type", "product") not in ("product", "list"):
        problems.append(
            document.problem(
                (*path, "type"), f"type is {node['type']!r}", "write type: product or type: list"
            )
        )
    if not isinstance(node.get("filter", True), bool | str):
        problems.append(
            document.problem((*path, "filter"), "filter takes an expression", 'write "{{ lr < 1e-2 }}"')
        )
    composed = node.get("list_composition") or []
    if not isinstance(composed, list) or not all(isinstance(key, str) for key in composed):
        problems.append(
            document.problem((*path, "list_composition"), "list_composition takes a list of keys")
        )
    if problems:
        raise SpecError(problems)
