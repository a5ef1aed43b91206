"""The texts of problems, whatever a document contains: one printable line with a place."""

from __future__ import annotations

import pytest

from airflow_megatron.spec.documents.errors import (
    MOST_COMPARISONS,
    MOST_PROBLEMS,
    Problem,
    SpecError,
    begin_hints,
    near_names,
)
from airflow_megatron.spec.spec_files import load_sweep_text

HOSTILE = "\x1b]0;title\x07\x1b[2J\nother.yaml:1:1: fine \u202e"


def test_a_value_moves_no_cursor_and_forges_no_line() -> None:
    problem = Problem(f"a{HOSTILE}.yaml", 3, 4, f"no {HOSTILE}", f"write {HOSTILE}")
    for text in (str(problem), problem.with_severity("error"), str(SpecError(problem))):
        assert text.isprintable()
        assert "\\x1b[2J" in text


def test_a_long_value_is_cut() -> None:
    text = str(Problem("a.yaml", 1, 1, "x" * 10_000, "y" * 10_000))
    assert len(text) < 4_200
    assert "(8000 more characters)" in text


@pytest.mark.parametrize(
    "text",
    [
        'backend: {class_name: "\\e]0;pwned\\a\\e[2J\\nc1.yaml:1:1: fine"}\nsweep: {}\n',
        'sweep:\n  grids:\n    - a.b: "x\\ny\\e[1m"\n',
        'name: "a\\e[31m"\npoint: p\nstages: {a: {kind: "\\u202e"}}\n',
    ],
)
def test_errors_of_every_language_are_printable(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_sweep_text(text, "s.yaml")
    for line in str(refused.value).split("\n"):
        assert line.isprintable()
        assert line.startswith("s.yaml:")


@pytest.mark.parametrize(
    "language", ["name: x\npoint: p\n", "sweep: {}\nbackend: {class_name: a}\n", "cmd: x\n"]
)
@pytest.mark.parametrize("character", ["\x01", "\x00", "\x7f", "\ud800", "\ufffe"])
def test_a_character_that_yaml_forbids_has_a_place(language: str, character: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_sweep_text(f"{language}# é\nx: é{character}b\n", "s.yaml")
    (problem,) = refused.value.problems
    assert (problem.line, problem.column) == (language.count("\n") + 2, 5)
    assert "a character that cannot stand in a file" in problem.message


def test_the_first_of_many_errors_are_shown() -> None:
    found = [Problem("a.yaml", line, 1, "wrong") for line in range(MOST_PROBLEMS + 9, 0, -1)]
    shown = SpecError(found).problems
    assert [problem.line for problem in shown] == [*range(1, MOST_PROBLEMS + 1), 0]
    assert str(shown[-1]) == (
        "a.yaml: there are more than 500 errors; the others are not shown (correct those above first)"
    )
    assert len(SpecError(found[:MOST_PROBLEMS]).problems) == MOST_PROBLEMS


@pytest.mark.slow
def test_a_spec_with_very_many_wrong_names_gets_no_more_hints() -> None:
    names = [f"name{index}" for index in range(1_000)]
    found = [near_names("nam5", names) for _ in range(MOST_COMPARISONS // len(names) + 2)]
    assert found[0]
    assert not found[-1]
    begin_hints()
    assert near_names("nam5", names)
