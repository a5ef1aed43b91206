"""Blends of data sets."""

from __future__ import annotations

import pytest

from airflow_megatron.megatron.arguments.data_blends import blend_problem


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
