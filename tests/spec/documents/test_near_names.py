"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.errors import (
    _may_resemble,
    did_you_mean,
    longer_names,
    near_names,
    suggestion,
)

KNOWN = ("limit", "limits", "num_fewshot", 5)


def test_near_names() -> None:
    assert near_names("limit", KNOWN) == ["limit", "limits"]
    assert near_names("limt", KNOWN, limit=1) == ["limit"]
    assert near_names("limt", KNOWN, alike=0.85) == ["limit"] != near_names("limt", KNOWN, alike=0.9)


def test_names_that_differ_in_separators() -> None:
    assert near_names("Num-Fewshot", KNOWN) == ["num_fewshot"]
    assert near_names("a-b", ("a_b", "a_c")) == ["a_b"]


def test_names_of_which_the_word_is_a_part() -> None:
    known = (
        "gpus_per_node",
        "micro_batch_size",
        "data_of_one",
        "data_of_two",
        "data_of_three",
        "data_of_four",
    )
    assert longer_names("gpus", known) == ["gpus_per_node"]
    assert longer_names("batch-size", known) == ["micro_batch_size"]
    assert longer_names("data", known) == longer_names("", known) == longer_names("gpu", known) == []


def test_hints_for_near_names() -> None:
    assert did_you_mean("limt", KNOWN) == "did you mean 'limit' or 'limits'?"
    assert did_you_mean("batch", KNOWN) == suggestion([]) == ""
    assert suggestion(["a.b"]) == "did you mean a.b?"


@given(
    st.text("abcAB_-", max_size=12),
    st.lists(st.text("abcAB_-", max_size=12), max_size=6),
    st.sampled_from((0.6, 0.8, 0.85)),
)
def test_the_names_of_difflib_and_no_others(word: str, names: list[str], alike: float) -> None:
    letters = frozenset(word.lower())
    compared = [name for name in names if _may_resemble(word, letters, name, alike)]
    for case in (str, str.lower):
        found = difflib.get_close_matches(case(word), map(case, compared), n=3, cutoff=alike)
        assert found == difflib.get_close_matches(case(word), map(case, names), n=3, cutoff=alike)
