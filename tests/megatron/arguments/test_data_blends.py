"""Blends of data sets."""

from __future__ import annotations

import pytest

from airflow_megatron.megatron.arguments.data_blends import blend_problem, share_problem


@pytest.mark.parametrize(
    ("blend", "reason"),
    [
        ([0.6, "A", "B"], "B has no weight"),
        (["0.6", "A", "B"], "B has no weight"),
        (["A", 0.4, "B"], "A has no weight"),
        ([0.6, "A", 0.4], "no data set follows the weight 0.4"),
        ([0.6, 0.4, "A", "B"], "no data set follows the weight 0.6"),
        (["A", 0.6, "B", 0.4], "A has no weight"),
        ("0.6 A 0.4 B", "is one text"),
    ],
)
def test_what_is_no_blend(blend: object, reason: str) -> None:
    assert reason in (blend_problem(blend) or "")


@pytest.mark.parametrize(
    "blend",
    [
        [0.6, "A", 0.4, "B"],
        ["30", "A", "70", "B"],
        ["A"],
        ["A", "B"],
        ["A", "B", "C"],
        ["1"],
        "A",
        "/my data/A",
        None,
        [],
    ],
)
def test_blends(blend: object) -> None:
    assert blend_problem(blend) is None


@pytest.mark.parametrize(
    ("blend", "reason"),
    [
        ([], "names no data set"),
        ([0, "A"], "the weight 0 is no share above zero"),
        ([0, "A", 1, "B"], "0 A 1 B: the weight 0 is"),
        (["-0.5", "A", "1.5", "B"], "the weight -0.5 is"),
        ([-1, "A", 1, "B"], "the weight -1 is"),
        (["nan", "A", 1, "B"], "the weight nan is"),
    ],
)
def test_shares_that_upstream_does_not_build(blend: object, reason: str) -> None:
    assert reason in (share_problem(blend) or "")


@pytest.mark.parametrize(
    "blend", [None, "A", ["A"], ["A", "B"], [1, "A"], [0.6, "A", 0.4, "B"], ["30", "A", "70", "B"]]
)
def test_shares_that_upstream_builds(blend: object) -> None:
    assert share_problem(blend) is None
