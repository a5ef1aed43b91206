"""The grammar of ``sweep:`` blocks in complete specs: the points, and errors of invalid blocks."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from example_specs import spec_text
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.sweep import Sweep

LR_AND_BATCH = "lr{{ lr }}_gbs{{ global_batch_size }}"


def sweep_of(block: str, point: str, more: str = "") -> Sweep:
    return load_sweep_text(spec_text(block, point=point, more=more), "sweep.yaml")


def names(block: str, point: str, more: str = "") -> list[str]:
    return [found.name for found in sweep_of(block, point, more).points]


def told(block: str, point: str = "p{{ lr }}") -> str:
    with pytest.raises(SpecError) as caught:
        _ = sweep_of(block, point).points
    return str(caught.value)


class TestReadmeOfOellmAutoexp:
    """The five sweeps of its README (fa63a6d) with Megatron's names, and their documented numbers of jobs."""

    def test_grid(self) -> None:
        points = sweep_of(
            """
            base_values: {num_layers: 20, hidden_size: 896}
            grids:
              - lr: [1e-4, 5e-4, 1e-3]
                global_batch_size: [64, 128, 256]
            """,
            LR_AND_BATCH,
        ).points
        assert len(points) == 9
        assert [point.name for point in points[:4]] == [
            "lr0.0001_gbs64",
            "lr0.0001_gbs128",
            "lr0.0001_gbs256",
            "lr0.0005_gbs64",
        ]
        assert all(point.values["num_layers"] == 20 for point in points)
        assert all(point.swept == ("lr", "global_batch_size") for point in points)

    def test_groups(self) -> None:
        points = sweep_of(
            """
            type: list
            groups:
              - type: product
                groups:
                  - params: {lr: [1e-4, 5e-4, 1e-3]}
                  - params: {global_batch_size: [64, 128]}
                defaults: {phase: small_batch, train_iters: 5000}
              - type: product
                groups:
                  - params: {lr: [5e-4, 1e-3, 2e-3]}
                  - params: {global_batch_size: [256, 512]}
                defaults: {phase: large_batch, train_iters: 5000}
              - configs:
                  - {phase: production, lr: 5e-4, global_batch_size: 256, train_iters: 100000}
                  - {phase: production, lr: 1e-3, global_batch_size: 128, train_iters: 100000}
            """,
            LR_AND_BATCH + "_{{ phase }}",
        ).points
        phases = [point.values["phase"] for point in points]
        assert phases == ["small_batch"] * 6 + ["large_batch"] * 6 + ["production"] * 2
        assert [point.values["train_iters"] for point in points] == [5000] * 12 + [100000] * 2

    def test_stages_as_a_list(self) -> None:
        found = names(
            """
            type: list
            groups:
              - params:
                  lr: [2.5e-4, 5e-4, 1e-3]
                  global_batch_size: [64, 128, 256]
                defaults: {phase: stable, train_iters: 18000}
              - params:
                  lr: [2.5e-4, 5e-4, 1e-3]
                  global_batch_size: [64, 128, 256]
                defaults: {phase: decay6B, train_iters: 36000}
            """,
            LR_AND_BATCH + "_{{ phase }}",
        )
        assert len(found) == 18
        assert len(set(found)) == 18

    def test_filter(self) -> None:
        found = names(
            """
            type: product
            groups:
              - lr: [1e-4, 5e-4, 1e-3, 2e-3]
              - global_batch_size: [64, 128, 256, 512, 1024]
            filter: "{{ not (lr > 1e-3 and global_batch_size > 256) }}"
            """,
            LR_AND_BATCH,
        )
        assert len(found) == 18
        assert not {"lr0.002_gbs512", "lr0.002_gbs1024"} & set(found)

    def test_nested_with_a_filter_inside(self) -> None:
        points = sweep_of(
            """
            type: list
            groups:
              - type: product
                groups:
                  - params: {lr: [1e-4, 5e-4, 1e-3, 2e-3]}
                  - params: {global_batch_size: [64, 128]}
                defaults: {phase: small_batch}
                filter: "{{ lr <= 1e-3 }}"
              - type: product
                groups:
                  - params: {lr: [5e-4, 1e-3, 2e-3, 5e-3]}
                  - params: {global_batch_size: [256, 512, 1024]}
                defaults: {phase: large_batch}
              - configs:
                  - {phase: production, lr: 5e-4, global_batch_size: 256}
            """,
            LR_AND_BATCH + "_{{ phase }}",
        ).points
        assert [point.values["phase"] for point in points] == (
            ["small_batch"] * 6 + ["large_batch"] * 12 + ["production"]
        )


def test_no_sweep_is_one_point() -> None:
    (point,) = sweep_of("", "only").points
    assert (point.name, dict(point.values), point.swept) == ("only", {}, ())


def test_grids_follow_each_other() -> None:
    assert names(
        "grids: [{lr: [1, 2]}, {lr: [8, 9], seed: [0, 1]}]", "{{ lr }}_{{ seed }}", "params: {seed: 7}"
    ) == [
        "1_7",
        "2_7",
        "8_0",
        "8_1",
        "9_0",
        "9_1",
    ]


def test_parts_of_one_group_are_multiplied_or_listed() -> None:
    parts = "params: {lr: [1, 2]}\nconfigs: [{seed: 3}, {seed: 4}]\n"
    assert names(parts, "{{ lr }}_{{ seed }}") == ["1_3", "1_4", "2_3", "2_4"]
    more = "params: {lr: 0, seed: 0}"
    assert names(f"type: list\n{parts}", "{{ lr }}_{{ seed }}", more) == ["1_0", "2_0", "0_3", "0_4"]


def test_a_config_that_is_a_group_is_expanded() -> None:
    assert names(
        "configs:\n  - {lr: 1, seed: 0}\n  - params: {lr: [2, 3]}\n    defaults: {seed: 9}\n",
        "{{ lr }}_{{ seed }}",
    ) == ["1_0", "2_9", "3_9"]


def test_groups_at_three_depths() -> None:
    assert names(
        """
        type: list
        groups:
          - groups:
              - type: list
                groups: [{lr: [1]}, {lr: [2, 3]}]
              - {seed: [7, 8]}
          - configs: [{lr: 9, seed: 9}]
        """,
        "{{ lr }}_{{ seed }}",
    ) == ["1_7", "1_8", "2_7", "2_8", "3_7", "3_8", "9_9"]


def test_inner_values_win_over_defaults_over_base_values() -> None:
    (point,) = sweep_of(
        """
        base_values: {a: base, b: base, c: base, d: base}
        defaults: {b: outer, c: outer, d: outer}
        groups:
          - defaults: {c: inner, d: inner}
            configs: [{d: own}]
        """,
        "{{ a }}_{{ b }}_{{ c }}_{{ d }}",
    ).points
    assert point.name == "base_outer_inner_own"
    assert point.swept == ("d",)


def test_later_groups_override_earlier_ones() -> None:
    assert names("groups: [{configs: [{lr: 1, seed: 1}]}, {configs: [{lr: 2}]}]", "{{ lr }}_{{ seed }}") == [
        "2_1"
    ]


def test_collected_lists() -> None:
    (point,) = sweep_of(
        """
        list_composition: [tags]
        base_values: {tags: [all]}
        groups:
          - configs: [{tags: [small], lr: 1}]
          - configs: [{tags: fast}]
        """,
        "{{ tags | join('-') }}",
    ).points
    assert point.name == "all-small-fast"


def test_collected_keys_that_nothing_sets() -> None:
    groups = "- list_composition: [tags, tagz]\n  params: {tags: [a]}\n- params: {lr: [1]}\n"
    sweep = sweep_of(f"groups:\n{groups}list_composition: [x, lr]", "p{{ lr }}")
    assert len(sweep.points) == 1
    assert [str(problem) for problem in sweep.warnings()] == [
        "sweep.yaml:8:22: list_composition has x, which no group sets (drop it)",
        "sweep.yaml:5:30: list_composition has tagz, which no group sets (did you mean 'tags'?)",
    ]


def test_filters_hold_at_every_level_and_see_every_value() -> None:
    assert names(
        """
        filter: "{{ lr + seed + width < 299 }}"
        groups:
          - filter: "{{ lr > 1 }}"
            lr: [1, 2, 3]
          - filter: "{{ seed != lr }}"
            seed: [2, 3]
        """,
        "{{ lr }}_{{ seed }}",
        "params: {width: '{{ 100 * lr - 6 }}'}",
    ) == ["2_3"]


@pytest.mark.parametrize(("filter_value", "count"), [("true", 2), ("'{{ true }}'", 2), ("'{{ 1 }}'", 2)])
def test_a_filter_that_keeps_all(filter_value: str, count: int) -> None:
    assert len(names(f"filter: {filter_value}\nlr: [1, 2]", "p{{ lr }}")) == count


def test_values_may_be_expressions_on_each_other() -> None:
    points = sweep_of('lr: [1, 2]\nbase_values: {half: "{{ lr / 2 }}"}', "p{{ half }}").points
    assert [point.name for point in points] == ["p0.5", "p1.0"]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("lr: []", "sweep.yaml:4:3: 'lr' has no values, which makes no point (give one or drop it)"),
        ("groups: []", "sweep.yaml:4:3: 'groups' takes a list that is not empty (start items with '- ')"),
        ("groups: {lr: [1]}", "sweep.yaml:4:3: 'groups' takes a list that is not empty"),
        (
            "groups:\n  - 3",
            "sweep.yaml:5:7: a group is a mapping (use one of groups, params, configs, grids)",
        ),
        (
            "groups:\n  - lr: [1]\n    type: zip",
            "sweep.yaml:6:7: type is 'zip' (write type: product or type: list)",
        ),
        ("configs: [3]", "sweep.yaml:4:13: a config is a mapping of values (write {lr: 1e-3, …})"),
        ("configs:", "sweep.yaml:4:3: 'configs' takes a list"),
        ("params: [1, 2]", "sweep.yaml:4:3: expected keys with lists of values (write lr: [1e-3, 1e-4])"),
        ("params:", "sweep.yaml:4:3: expected keys with lists of values"),
        ("grids: [[1]]", "sweep.yaml:4:11: expected keys with lists of values"),
        (
            "lr: {from: 1, to: 2}",
            "sweep.yaml:4:3: 'lr' is neither a list of values nor a word of the grammar",
        ),
        (
            "parms: {lr: [1]}",
            "sweep.yaml:4:3: 'parms' is neither a list of values nor a word of the grammar (did you mean 'params'?)",
        ),
        ("filter: 3\nlr: [1]", 'sweep.yaml:4:3: filter takes an expression (write "{{ lr < 1e-2 }}")'),
        ("base_values: 3\nlr: [1]", "sweep.yaml:4:3: 'base_values' takes keys with values"),
        ("defaults: [3]\nlr: [1]", "sweep.yaml:4:3: 'defaults' takes keys with values"),
        ("list_composition: lr\nlr: [1]", "sweep.yaml:4:3: list_composition takes a list of keys"),
        ("filter: '{{ lr > 5 }}'\nlr: [1]", "the sweep has no points (its filter drops them all)"),
        (
            "filter: 'lr > 5'\nlr: [1]",
            "sweep.yaml:4:3: filter 'lr > 5' gives text ('lr > 5'), not true or false; write \"{{ lr > 5 }}\"",
        ),
        (
            "lr: ['{lr}']",
            "sweep.yaml:2:1: 'p{lr}' cannot be a point's name (write expressions as \"{{ lr }}\")",
        ),
        (
            "filter: '{{ rl > 5 }}'\nlr: [1]",
            "sweep.yaml:4:3: '{{ rl > 5 }}' uses 'rl', which is not defined",
        ),
        ("filter: '{{ lr > 5 }}'\nlrr: [6]", "which is not defined; did you mean 'lrr'"),
        (
            "lr: [1, 1]",
            "points 1 and 2 are both named 'p1', and all their values are equal (remove one of the equal values)",
        ),
        (
            "lr: [1]\nbs: [1, 2]",
            "sweep.yaml:2:1: points 1 and 2 are both named 'p1' (use every swept value in point:, here bs)",
        ),
        (
            "{lr: [" + "a" * 121 + "]}",
            "cannot be a point's name: it has 122 characters (at most 121)",
        ),
        (
            "lr: [a/b]",
            "sweep.yaml:2:1: 'pa/b' cannot be a point's name (letters, digits and ._=+- only, no '..')",
        ),
        (
            "lr: [a..b]",
            "sweep.yaml:2:1: 'pa..b' cannot be a point's name (letters, digits and ._=+- only, no '..')",
        ),
    ],
)
def test_malformed_blocks(block: str, message: str) -> None:
    assert message in told(block)


@pytest.mark.parametrize("block", ["lr: [1]\nbs: [1, 2, 3, 4]", "lr: [a/b, a/c, a/d]", "lr: [1, 1, 2, 2]"])
def test_one_mistake_in_names_is_one_error(block: str) -> None:
    assert told(block).count("sweep.yaml:") == 1


def test_all_problems_of_a_group_are_reported_together() -> None:
    assert told("type: zip\ngroups: []\nfilter: 1").count("sweep.yaml:") == 3


@st.composite
def axes(draw: st.DrawFn) -> dict[str, list[int]]:
    keys = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
    return {key: draw(st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True)) for key in keys}


def values_of(block: Mapping[str, Any], keys: list[str]) -> list[tuple[int, ...]]:
    point = "_".join(f"{key}{{{{ {key} }}}}" for key in keys)
    points = sweep_of(json.dumps(block), point).points
    return [tuple(found.values[key] for key in keys) for found in points]


@pytest.mark.slow
@given(axes())
def test_a_product_has_every_combination_once_the_last_key_fastest(params: dict[str, list[int]]) -> None:
    keys = list(params)
    found = values_of({"params": params}, keys)
    assert len(found) == math.prod(len(axis) for axis in params.values())
    index = [[params[key].index(value) for key, value in zip(keys, point, strict=True)] for point in found]
    assert index == sorted(index)
    assert len(set(found)) == len(found)


@pytest.mark.slow
@given(axes())
def test_groups_of_one_axis_are_the_same_product(params: dict[str, list[int]]) -> None:
    groups = [{"params": {key: axis}} for key, axis in params.items()]
    assert values_of({"type": "product", "groups": groups}, list(params)) == values_of(
        {"params": params}, list(params)
    )


@pytest.mark.slow
@given(axes(), st.integers(0, 99))
def test_a_filter_keeps_exactly_what_holds(params: dict[str, list[int]], bound: int) -> None:
    keys = list(params)
    total = " + ".join(keys)
    kept = [point for point in values_of({"params": params}, keys) if sum(point) <= bound]
    block = {"params": params, "filter": f"{{{{ {total} <= {bound} }}}}"}
    if kept:
        assert values_of(block, keys) == kept
    else:
        with pytest.raises(SpecError, match="the sweep has no points"):
            values_of(block, keys)
