"""Expansion of oellm-autoexp's ``sweep:`` block to the same points, in the same order.

Rules read from, and compared with, ``oellm_autoexp/hydra_staged_sweep/expander.py`` (c6d0cc0):

* a group holds ``groups`` (combined by its ``type``), ``params`` (the product of its keys, last key fastest) or
  ``configs`` (one point each; an element that is itself a group is expanded), and ``defaults`` and a ``filter``;
* ``base_values`` < defaults of outer groups < defaults of inner groups < a point's own values; across a product
  later groups override earlier ones, *their base values and defaults included*; keys in ``list_composition`` are
  collected into a list instead;
* ``group_path`` holds the indices of the groups and of the combination, ``stage_path`` marks those that choose a
  ``stage``; siblings are found with them. By a later rule (branch ``hybrid_exp``, 16c771c), ``own_stage_path``, an
  index chooses a stage if the values or defaults there or around it name one, not if only a group inside it does.

The README (fa63a6d) documents more than is implemented: ``grids``, ``defaults`` of the whole block, bare
``key: [values]`` groups, and keys beside ``params``. They have the README's meaning here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

Values: TypeAlias = dict[str, Any]
Marks: TypeAlias = tuple[tuple[bool, bool], ...]
"""For each index of a path, whether it chooses a stage, by both rules."""

STAGE = "stage"
PARTS = ("groups", "params", "configs")
_GROUP_WORDS = frozenset({*PARTS, "grids", "type", "defaults", "filter"})
_BLOCK_WORDS = frozenset(
    {
        "class_name",
        "type",
        "groups",
        "base_values",
        "store_sweep_json",
        "filter",
        "list_composition",
        "defaults",
        "grids",
        "params",
        "configs",
    }
)
MAX_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination of parameters: one job of oellm-autoexp.

    :param index: position in the expansion, before filters
    :param parameters: dotted configuration key → value, interpolations unresolved
    :param group_path: indices of the groups, and of the combination in each
    :param stage_path: for each index, whether it chooses a stage
    :param own_stage_path: the same by the later rule
    :param filters: ``filter`` expressions of the groups that it came through, outermost first
    :param swept: the keys that ``params`` and ``configs`` assign (not those of defaults), ``stage`` left out
    """

    index: int
    parameters: Mapping[str, Any]
    group_path: tuple[int, ...] = ()
    stage_path: tuple[bool, ...] = ()
    own_stage_path: tuple[bool, ...] = ()
    filters: tuple[Any, ...] = ()
    swept: tuple[str, ...] = ()


@dataclass
class Expansion:
    """The points of a block, and warnings about it."""

    points: list[SweepPoint]
    warnings: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Combination:
    values: Values
    path: tuple[int, ...]
    stages: Marks
    filters: tuple[Any, ...] = ()
    swept: tuple[str, ...] = ()


def expand(block: Any, document: YamlDocument, path: KeyPath = ("sweep",)) -> Expansion:
    """Expand a ``sweep:`` block.

    :param block: the block; ``None`` or an empty mapping makes the one point without parameters
    :param document: the document it stands in, for messages
    :param path: its place
    :raises SpecError: naming file, line and hint
    """
    return _Expander(document).expand(block, path)


class _Expander:
    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.warnings: list[Problem] = []
        self.collected: frozenset[str] = frozenset()

    def expand(self, block: Any, path: KeyPath) -> Expansion:
        if block is None or block == {}:
            return Expansion([SweepPoint(0, {})])
        self._check_block(block, path)
        base: Values = dict(block.get("base_values") or {})
        defaults: Values = dict(block.get("defaults") or {})
        self.collected = frozenset(block.get("list_composition") or ())
        groups, paths = self._groups_of_block(block, path)
        kind = block.get("type")
        combinations: list[_Combination] = []
        if groups and kind is None and "groups" in block:
            self._warn(
                path,
                "a sweep with groups and no type makes one point (oellm-autoexp ignores the groups)",
                "write type: product or type: list",
            )
        elif groups:
            inner = {key: value for key, value in base.items() if key not in defaults}
            combinations = self._expand_groups(kind or "list", groups, paths, inner, (), ())
        shared = {**base, **defaults}
        points = [
            SweepPoint(
                index,
                self._over_defaults(defaults, shared, item.values) if defaults else item.values,
                item.path,
                tuple(chooses for chooses, _ in item.stages),
                tuple(chooses for _, chooses in item.stages),
                item.filters,
                item.swept,
            )
            for index, item in enumerate(combinations)
        ]
        self._warn_of_unused(block, points, path)
        if groups and not points and kind is not None:
            self._warn(
                path, "the groups make no point; the base values alone make one", "give every key a value"
            )
        return Expansion(points or [SweepPoint(0, shared)], self.warnings)

    def _warn_of_unused(self, block: Values, points: Sequence[SweepPoint], path: KeyPath) -> None:
        set_somewhere = {key for point in points for key in point.parameters} if self.collected else set()
        for key in sorted(self.collected - set_somewhere):
            near = did_you_mean(key, set_somewhere, limit=1)
            self._warn((*path, "list_composition"), f"list_composition has {key}, which no group sets", near)
        if block.get("store_sweep_json") is False:
            self._warn(
                (*path, "store_sweep_json"), "store_sweep_json: nothing here writes such a file", "drop it"
            )

    def _over_defaults(self, defaults: Values, shared: Values, values: Values) -> Values:
        merged = {**shared, **values}
        for key in self.collected & defaults.keys() & values.keys():
            merged[key] = [*_as_list(defaults[key]), *_as_list(values[key])]
        return merged

    def _groups_of_block(self, block: Values, path: KeyPath) -> tuple[list[Values], list[KeyPath]]:
        """Return the block's groups; ``grids``, ``params`` and ``configs`` outside a group are groups too."""
        groups = list(block.get("groups") or ())
        paths: list[KeyPath] = [(*path, "groups", index) for index in range(len(groups))]
        loose: list[tuple[Values, KeyPath]] = []
        for index, grid in enumerate(self._grids(block, path)):
            loose.append(({"params": grid}, (*path, "grids", index)))
        for word in ("params", "configs"):
            if word in block:
                loose.append(({word: block[word]}, path))
        if groups and loose:
            self._warn(
                path, "groups and grids of one block are combined by its type", "put the grids into a group"
            )
        for group, place in loose:
            groups.append(group)
            paths.append(place)
        return groups, paths

    def _grids(self, node: Values, path: KeyPath) -> list[Any]:
        grids = node.get("grids") or []
        if isinstance(grids, dict):
            grids = [grids]
        if not isinstance(grids, list):
            raise SpecError(self.document.problem((*path, "grids"), "grids takes a list of {key: [values]}"))
        return grids

    def _expand_groups(
        self,
        kind: str,
        groups: Sequence[Any],
        places: Sequence[KeyPath],
        base: Values,
        path: tuple[int, ...],
        stages: Marks,
    ) -> list[_Combination]:
        if not groups:
            return [_Combination(dict(base), (*path, 0), (*stages, (STAGE in base,) * 2))]
        expanded = [
            self._expand_group(group, place, base, (*path, index), stages)
            for index, (group, place) in enumerate(zip(groups, places, strict=True))
        ]
        if kind == "list":
            return [item for items in expanded for item in items]
        return self._product(expanded, places)

    def _expand_group(
        self, group: Any, place: KeyPath, base: Values, path: tuple[int, ...], stages: Marks
    ) -> list[_Combination]:
        self._check_group(group, place)
        if not any(word in group for word in (*PARTS, "grids")):
            group = {
                **{word: group[word] for word in ("type", "defaults", "filter") if word in group},
                "params": {key: value for key, value in group.items() if key not in _GROUP_WORDS},
            }
            params_place = place
        else:
            params_place = (*place, "params")
        around = STAGE in base
        base = {**base, **(group.get("defaults") or {}), **self._beside(group, place)}
        if "groups" not in group:
            stages = (*stages, (False, around))
        if "groups" in group:
            places: list[KeyPath] = [(*place, "groups", index) for index in range(len(group["groups"] or ()))]
            made = self._expand_groups(
                group.get("type", "product"),
                group["groups"] or (),
                places,
                base,
                path,
                (*stages, (False, STAGE in base)),
            )
        elif "params" in group:
            made = self._expand_params(group["params"] or {}, params_place, base, path, stages)
        elif "configs" in group:
            made = self._expand_configs(group["configs"] or (), (*place, "configs"), base, path, stages)
        else:
            grids = [{"params": grid} for grid in self._grids(group, place)]
            made = self._expand_configs(grids, (*place, "grids"), base, path, stages)
        if "filter" not in group or group["filter"] in (None, True):
            return made
        if group.get("type") == "list":
            self._warn(
                (*place, "filter"),
                "oellm-autoexp ignores the filter of a 'type: list' group; it is applied here",
                "",
            )
        condition = (group["filter"],)
        return [
            _Combination(item.values, item.path, item.stages, condition + item.filters, item.swept)
            for item in made
        ]

    def _expand_params(
        self, params: Any, place: KeyPath, base: Values, path: tuple[int, ...], stages: Marks
    ) -> list[_Combination]:
        if not isinstance(params, dict):
            raise SpecError(
                self.document.problem(place, "expected keys with lists of values", "write lr: [1e-3, 1e-4]")
            )
        for key, values in params.items():
            near = did_you_mean(key, _GROUP_WORDS) if "." not in key else ""
            if near and isinstance(values, list) and any(isinstance(value, dict) for value in values):
                raise SpecError(self.document.problem((*place, key), f"a group has no key {key!r}", near))
            if not isinstance(values, list):
                raise SpecError(
                    self.document.problem(
                        (*place, key), f"{key} takes a list of values", near or f"write {key}: [{values}]"
                    )
                )
            if not values:
                self._warn(
                    (*place, key),
                    f"{key} has no values, which makes no point of its group",
                    "give one or drop it",
                )
        if not params:
            self._warn(
                place, "there is no key here, which makes one point of its group", "write lr: [1e-3, 1e-4]"
            )
        self._check_count(params, place)
        marks = (*stages, (STAGE in base or STAGE in params,) * 2)
        swept = tuple(key for key in params if key != STAGE)
        keys = list(params)
        return [
            _Combination({**base, **dict(zip(keys, choice, strict=True))}, (*path, index), marks, (), swept)
            for index, choice in enumerate(itertools.product(*params.values()))
        ]

    def _expand_configs(
        self,
        configs: Any,
        place: KeyPath,
        base: Values,
        path: tuple[int, ...],
        stages: Marks,
    ) -> list[_Combination]:
        if not isinstance(configs, list | tuple):
            raise SpecError(self.document.problem(place, "configs takes a list", "start items with '- '"))
        if not configs:
            self._warn(place, "the list is empty, which makes no point of its group", "give one or drop it")
        made: list[_Combination] = []
        for index, config in enumerate(configs):
            if not isinstance(config, dict):
                raise SpecError(
                    self.document.problem(
                        (*place, index), "a config is a mapping of values", "write {key: value, …}"
                    )
                )
            if any(word in config for word in (*PARTS, "grids")):
                own = STAGE in base or any(STAGE in node for node in _mappings(config.get("defaults")))
                marks = (*stages, (_names_stage(config), own))
                made += self._expand_groups("list", [config], [(*place, index)], base, (*path, index), marks)
            else:
                values = {**base, **config}
                swept = tuple(key for key in config if key != STAGE)
                made.append(
                    _Combination(values, (*path, index), (*stages, (STAGE in values,) * 2), (), swept)
                )
        return made

    def _product(
        self, expanded: Sequence[list[_Combination]], places: Sequence[KeyPath]
    ) -> list[_Combination]:
        if len(expanded) == 1:
            return expanded[0]
        self._check_count(dict(enumerate(expanded)), places[0])
        if all(expanded):
            self._warn_of_hidden_values(expanded, places)
        made = []
        for choice in itertools.product(*expanded):
            values: Values = {}
            for item in choice:
                if not self.collected:
                    values.update(item.values)
                    continue
                for key, value in item.values.items():
                    if key in self.collected:
                        values.setdefault(key, []).extend(_as_list(value))
                    else:
                        values[key] = value
            made.append(
                _Combination(
                    values,
                    tuple(itertools.chain.from_iterable(item.path for item in choice)),
                    tuple(itertools.chain.from_iterable(item.stages for item in choice)),
                    tuple(itertools.chain.from_iterable(item.filters for item in choice)),
                    tuple(dict.fromkeys(itertools.chain.from_iterable(item.swept for item in choice))),
                )
            )
        return made

    def _beside(self, group: Values, place: KeyPath) -> Values:
        """Return the keys written beside ``params``/``configs``/``groups``: the README's values for all its points."""
        beside = {key: value for key, value in group.items() if key not in _GROUP_WORDS}
        for key in beside:
            self._warn(
                (*place, key),
                f"{key} stands beside {' and '.join(word for word in PARTS if word in group)}; oellm-autoexp "
                "ignores it there, here it is given to every point of the group",
                did_you_mean(key, _GROUP_WORDS) or "write it under defaults:",
            )
        return beside

    def _warn_of_hidden_values(
        self, expanded: Sequence[list[_Combination]], places: Sequence[KeyPath]
    ) -> None:
        for number, items in enumerate(expanded[:-1]):
            for key in items[0].swept:
                for other in expanded[number + 1 :]:
                    if key in other[0].values and key not in other[0].swept and key not in self.collected:
                        self._warn(
                            places[number],
                            f"{key} varies here, but a base value or default of a later group of the product "
                            "overrides it, as in oellm-autoexp",
                            "move this group to the end, or drop the base value",
                        )
                        break

    def _check_count(self, axes: Mapping[Any, Sequence[Any]], place: KeyPath) -> None:
        count = 1
        for values in axes.values():
            count *= len(values)
            if count > MAX_POINTS:
                raise SpecError(
                    self.document.problem(
                        place, f"the sweep makes more than {MAX_POINTS:,} points", "cut it up"
                    )
                )

    def _check_block(self, block: Any, path: KeyPath) -> None:
        if not isinstance(block, dict):
            raise SpecError(
                self.document.problem(path, "sweep takes keys with values", "write type: product …")
            )
        problems = [
            self.document.problem(
                (*path, key),
                f"unknown key {key!r}",
                did_you_mean(key, _BLOCK_WORDS) or f"known here: {', '.join(sorted(_BLOCK_WORDS))}",
            )
            for key in block
            if key not in _BLOCK_WORDS
        ]
        problems += self._problems_of_type(block, path)
        stored = block.get("store_sweep_json")
        if not isinstance(stored, bool | None):
            message = f"store_sweep_json is {stored!r}, not true or false"
            problems.append(self.document.problem((*path, "store_sweep_json"), message))
        for word in ("base_values", "defaults"):
            if not isinstance(block.get(word) or {}, dict):
                problems.append(self.document.problem((*path, word), f"{word} takes keys with values"))
        collected = block.get("list_composition") or []
        if not isinstance(collected, list) or not all(isinstance(key, str) for key in collected):
            problems.append(
                self.document.problem((*path, "list_composition"), "list_composition takes a list of keys")
            )
        if not isinstance(block.get("groups") or [], list):
            problems.append(
                self.document.problem((*path, "groups"), "groups takes a list", "start items with '- '")
            )
        if problems:
            raise SpecError(problems)

    def _check_group(self, group: Any, place: KeyPath) -> None:
        if not isinstance(group, dict) or not group:
            raise SpecError(
                self.document.problem(place, "a group is a mapping", f"use one of {', '.join(PARTS)}")
            )
        problems = self._problems_of_type(group, place)
        given = [word for word in (*PARTS, "grids") if word in group]
        if len(given) > 1:
            problems.append(
                self.document.problem(
                    (*place, given[1]),
                    f"a group holds one of {', '.join(given)}",
                    "put each into a group of its own, under groups:",
                )
            )
        if not isinstance(group.get("groups") or [], list):
            problems.append(
                self.document.problem((*place, "groups"), "groups takes a list", "start items with '- '")
            )
        if not isinstance(group.get("defaults") or {}, dict):
            problems.append(self.document.problem((*place, "defaults"), "defaults takes keys with values"))
        if problems:
            raise SpecError(problems)

    def _problems_of_type(self, node: Values, place: KeyPath) -> list[Problem]:
        problems = []
        if node.get("type") not in (None, "product", "list"):
            problems.append(
                self.document.problem(
                    (*place, "type"), f"type is {node['type']!r}", "write type: product or type: list"
                )
            )
        if not isinstance(node.get("filter"), bool | str | None):
            problems.append(
                self.document.problem(
                    (*place, "filter"),
                    "filter takes true, false or an expression",
                    "write \"\\\\${oc.eval:'…'}\"",
                )
            )
        return problems

    def _warn(self, path: KeyPath, message: str, hint: str) -> None:
        self.warnings.append(self.document.problem(path, message, hint))


def _names_stage(config: Values) -> bool:
    """Return whether a nested group names a stage (in ``params`` or in a list element)."""
    return any(STAGE in node for word in PARTS for node in _mappings(config.get(word)))


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
