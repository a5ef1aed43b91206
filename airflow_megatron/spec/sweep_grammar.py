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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_megatron.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.yaml_document import KeyPath, YamlDocument

PARTS = ("groups", "params", "configs", "grids")
WORDS = frozenset({*PARTS, "type", "base_values", "defaults", "filter", "list_composition"})

Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Combination:
    """One combination of swept values, before expressions are evaluated.

    :param values: key → value, defaults merged in
    :param filters: the ``filter`` expressions of all groups that it came through, outermost first
    :param swept: the keys that vary (not those that only came from defaults)
    """

    values: Values
    filters: tuple[str | bool, ...] = ()
    swept: frozenset[str] = frozenset()


def expand_sweep(block: Any, document: YamlDocument, path: KeyPath = ("sweep",)) -> list[Combination]:
    """Expand a ``sweep:`` block; ``None`` gives the one empty combination.

    :raises SpecError: naming file, line and mend for every malformed group
    """
    if block is None:
        return [Combination({})]
    return list(_expand_group(block, document, path, ()))


def swept_keys(block: Any) -> list[str]:
    """Return every key that a ``sweep:`` block assigns, in document order, without expanding it."""
    keys: dict[str, None] = {}

    def walk(node: Any) -> None:
        if not isinstance(node, dict):
            return
        for word in ("base_values", "defaults", "params"):
            keys.update(dict.fromkeys(node.get(word) or ()))
        for grid in node.get("grids") or ():
            keys.update(dict.fromkeys(grid))
        for config in node.get("configs") or ():
            if _is_group(config):
                walk(config)
            else:
                keys.update(dict.fromkeys(config))
        for group in node.get("groups") or ():
            walk(group)
        keys.update(dict.fromkeys(key for key in node if key not in WORDS))

    walk(block)
    return list(keys)


def _is_group(node: Any) -> bool:
    return isinstance(node, dict) and any(word in node for word in PARTS)


def _expand_group(
    node: Any, document: YamlDocument, path: KeyPath, composed: tuple[str, ...]
) -> Iterator[Combination]:
    _check_group(node, document, path)
    composed = (*composed, *(node.get("list_composition") or ()))
    parts: list[list[Combination]] = []
    for index, group in enumerate(node.get("groups") or ()):
        parts.append(list(_expand_group(group, document, (*path, "groups", index), composed)))
    if "params" in node:
        parts.append(_product_of_values(node["params"], document, (*path, "params")))
    if "grids" in node:
        grids = node["grids"] if isinstance(node["grids"], list) else [node["grids"]]
        parts.append(
            [
                combination
                for index, grid in enumerate(grids)
                for combination in _product_of_values(grid, document, (*path, "grids", index))
            ]
        )
    if "configs" in node:
        parts.append(list(_expand_configs(node["configs"], document, (*path, "configs"), composed)))
    bare = {key: value for key, value in node.items() if key not in WORDS}
    if bare:
        parts.append(_product_of_values(bare, document, path))
    shared = {**(node.get("base_values") or {}), **(node.get("defaults") or {})}
    filters = (node["filter"],) if "filter" in node else ()
    combined = (
        itertools.chain.from_iterable(parts)
        if node.get("type") == "list"
        else (_merge(choice, composed) for choice in itertools.product(*parts))
    )
    for combination in combined:
        yield Combination(
            _merge_values([shared, combination.values], composed),
            filters + combination.filters,
            combination.swept,
        )


def _expand_configs(
    configs: Sequence[Any], document: YamlDocument, path: KeyPath, composed: tuple[str, ...]
) -> Iterator[Combination]:
    for index, config in enumerate(configs):
        if _is_group(config):
            yield from _expand_group(config, document, (*path, index), composed)
        elif isinstance(config, dict):
            yield Combination(dict(config), swept=frozenset(config))
        else:
            raise SpecError(
                document.problem((*path, index), "a config is a mapping of values", "write {lr: 1e-3, …}")
            )


def _product_of_values(values: Any, document: YamlDocument, path: KeyPath) -> list[Combination]:
    if not isinstance(values, dict):
        raise SpecError(
            document.problem(path, "expected keys with lists of values", "write lr: [1e-3, 1e-4]")
        )
    axes: list[list[Any]] = []
    for key, axis in values.items():
        if isinstance(axis, dict):
            known = ", ".join(sorted(WORDS))
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
        axes.append(axis if isinstance(axis, list) else [axis])
    keys = list(values)
    swept = frozenset(keys)
    return [
        Combination(dict(zip(keys, choice, strict=True)), swept=swept) for choice in itertools.product(*axes)
    ]


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
