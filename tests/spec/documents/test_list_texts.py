"""Texts that look like lists."""

from __future__ import annotations

import pytest

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.list_texts import meant_list
from airflow_megatron.spec.spec_files import load_sweep_text

SPEC = """\
name: s
point: "{point}"
trainer: megatron_core
megatron: {{train_iters: 10}}
sweep: {{lr: {lr}, seed: [1, 2]}}
stages: {{pretrain: {{kind: train}}}}
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1e-4, 3e-4", "[1e-4, 3e-4]"),
        ("1e-4,3e-4,1", "[1e-4, 3e-4, 1]"),
        ("1e-4 3e-4", "[1e-4, 3e-4]"),
        ("[1, 2]", "[1, 2]"),
        ("1; 2", "[1, 2]"),
    ],
)
def test_several_numbers_in_one_text(text: str, wanted: str) -> None:
    assert meant_list(text) == wanted


@pytest.mark.parametrize("value", ["1e-4", "WSD", "a, b", "", 3, None, [1, 2], "949,50,x"])
def test_everything_else(value: object) -> None:
    assert meant_list(value) is None


def points(name: str, rates: str) -> int:
    return len(load_sweep_text(SPEC.format(point=name, lr=rates), "s.yaml").points)


def test_an_axis_that_is_one_text() -> None:
    with pytest.raises(
        SpecError, match=r"lr is one text, '1e-4, 3e-4', not a list of values \(lr: \[1e-4, 3e-4\]\)"
    ):
        points("lr{{ lr }}", '"1e-4, 3e-4"')
    with pytest.raises(SpecError, match="cannot be a point's name"):
        points("a b {{ seed }}", "[1e-4]")


def test_an_argument_that_is_one_text() -> None:
    with pytest.raises(
        ArgumentError, match=r"one text; to try several values write sweep: \{lr: \[1e-4, 3e-4\]"
    ):
        to_argv({"lr": "1e-4, 3e-4"}, "core_v0.16.1")
    assert to_argv({"split": "949,50,1"}, "core_v0.16.1") == ["--split", "949,50,1"]
