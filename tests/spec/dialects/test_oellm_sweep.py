"""The expansion of oellm-autoexp's ``sweep:`` blocks compared with that of the tool."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_megatron.spec.dialects.oellm.sweep import Expansion, expand
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import YamlDocument, load_yaml_text

CONFORMANCE = Path(__file__).parents[2] / "fixtures" / "conformance"


def _recorded(name: str) -> dict[str, dict[str, Any]]:
    return json.loads((CONFORMANCE / name).read_text())


def expanded(text: str) -> Expansion:
    document = load_yaml_text(text, "sweep.yaml")
    return expand(document.data["sweep"], document)


def check(case: dict[str, Any]) -> None:
    block = case["sweep"]
    points = [
        {
            "index": point.index,
            "parameters": point.parameters,
            "group_path": list(point.group_path),
            "stage_path": list(point.stage_path),
        }
        for point in expand(block, YamlDocument("sweep.yaml", block), ()).points
    ]
    # as text: 1 and True are equal in Python, and the order of the keys counts
    assert [json.dumps(point) for point in points] == [json.dumps(point) for point in case["points"]], block


@pytest.mark.parametrize("case", (cases := _recorded("oellm_sweeps.json")).values(), ids=cases)
def test_points_equal_those_of_oellm_autoexp(case: dict[str, Any]) -> None:
    check(case)


def test_points_of_random_sweeps_equal_those_of_oellm_autoexp() -> None:
    for case in _recorded("oellm_random_sweeps.json").values():
        check(case)


def test_grids_are_products_one_after_the_other() -> None:
    expansion = expanded(
        """
        sweep:
          base_values: {backend.megatron.num_layers: 20}
          grids:
            - backend.megatron.lr: [1e-4, 5e-4, 1e-3]
              backend.megatron.global_batch_size: [64, 128, 256]
            - {backend.megatron.lr: [1]}
        """
    )
    assert len(expansion.points) == 10
    assert expansion.points[1].parameters == {
        "backend.megatron.num_layers": 20,
        "backend.megatron.lr": 1e-4,
        "backend.megatron.global_batch_size": 128,
    }
    assert [point.group_path for point in expansion.points[-2:]] == [(0, 8), (1, 0)]


def test_defaults_of_the_block_are_weakest() -> None:
    expansion = expanded(
        """
        sweep:
          type: list
          base_values: {a: base, b: base}
          defaults: {b: default, c: default}
          groups:
            - defaults: {c: group}
              params: {lr: [1, 2]}
            - configs: [{b: point}]
        """
    )
    assert [dict(point.parameters) for point in expansion.points] == [
        {"a": "base", "b": "default", "c": "group", "lr": 1},
        {"a": "base", "b": "default", "c": "group", "lr": 2},
        {"a": "base", "b": "point", "c": "default"},
    ]


def test_bare_keys_of_a_group_are_its_params() -> None:
    expansion = expanded(
        "sweep: {type: product, groups: [{lr: [1, 2, 3, 4]}, {gbs: [1, 2, 3, 4, 5], filter: false}]}"
    )
    assert len(expansion.points) == 20
    assert {point.filters for point in expansion.points} == {(False,)}


def test_keys_beside_params_are_given_to_every_point_and_warned_about() -> None:
    expansion = expanded("sweep:\n  type: list\n  groups:\n    - params: {lr: [1, 2]}\n      job.wait: yes\n")
    assert [point.parameters["job.wait"] for point in expansion.points] == ["yes", "yes"]
    assert str(expansion.warnings[0]).startswith("sweep.yaml:5:7: job.wait stands beside params")


def test_base_value_that_hides_a_group_is_warned_about() -> None:
    expansion = expanded("sweep: {type: product, base_values: {a: 0}, groups: [{a: [1, 2]}, {b: [3]}]}")
    assert [point.parameters["a"] for point in expansion.points] == [0, 0]
    assert "a varies here" in expansion.warnings[0].message


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("sweep:\n  typ: list", "sweep.yaml:2:3", "did you mean 'type'"),
        ("sweep:\n  type: both\n  groups: []", "sweep.yaml:2:3", "type is 'both'"),
        ("sweep:\n  type: list\n  groups:\n    - params: {lr: 3}", "sweep.yaml:4:16", "write lr: [3]"),
        (
            "sweep:\n  type: list\n  groups:\n    - parms: {lr: [3]}",
            "sweep.yaml:4:7",
            "did you mean 'params'",
        ),
        ("sweep:\n  type: list\n  groups:\n    - 7", "sweep.yaml:4:7", "a group is a mapping"),
        (
            "sweep:\n  type: list\n  groups:\n    - {params: {}, configs: []}",
            "sweep.yaml:4:20",
            "holds one of",
        ),
        ("sweep:\n  type: list\n  groups:\n    - configs: [x]", "sweep.yaml:4:17", "a config is a mapping"),
        (
            "sweep:\n  type: list\n  groups: [{configs: [{a: 1}], filter: 3}]",
            "sweep.yaml:3:32",
            "filter takes",
        ),
    ],
)
def test_mistakes_are_reported_with_place_and_hint(text: str, place: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        expanded(text)
    assert str(error.value).startswith(place)
    assert message in str(error.value)


def test_too_many_points_are_refused_before_they_are_made() -> None:
    axis = list(range(40))
    groups = [{keys[0]: axis, keys[1]: axis} for keys in ("ab", "cd", "ef")]  # 1,600 each, 4 billion together
    with pytest.raises(SpecError, match="more than 1,000,000 points"):
        expanded(json.dumps({"sweep": {"type": "product", "groups": groups}}))


_WORDS = st.sampled_from(
    [
        "type",
        "groups",
        "params",
        "configs",
        "grids",
        "defaults",
        "filter",
        "base_values",
        "lr",
        "a.b",
        "stage",
    ]
)
_NODES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["list", "product", "${x}", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=25,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@example({"configs": [{"groups": None, "defaults": True}]})
@given(_NODES)
def test_any_document_expands_or_is_refused(node: Any) -> None:
    with contextlib.suppress(SpecError):
        expansion = expand(node, YamlDocument("sweep.yaml", {"sweep": node}))
        assert [point.index for point in expansion.points] == list(range(len(expansion.points)))
