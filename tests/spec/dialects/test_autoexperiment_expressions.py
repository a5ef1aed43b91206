"""Expressions and texts of AutoExperiment files compared with Python's ``eval`` and ``str.format``."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_megatron.spec.dialects.autoexperiment.expansion import expand_document
from airflow_megatron.spec.dialects.autoexperiment.expressions import (
    RefusedExpressionError,
    UnresolvedError,
    evaluate_expression,
    format_text,
)
from airflow_megatron.spec.dialects.autoexperiment.references import load_autoexperiment_yaml
from airflow_megatron.spec.dialects.autoexperiment.resolution import (
    EndlessError,
    RefusedValueError,
    ResolutionPlan,
    settle,
)
from airflow_megatron.spec.documents.errors import SpecError

_PLAIN = {
    "abs": abs,
    "float": float,
    "int": int,
    "len": len,
    "max": max,
    "min": min,
    "round": round,
    "str": str,
}
_NUMBERS = st.integers(-1000, 1000).map(str) | st.floats(-1e3, 1e3, allow_nan=False).map(repr)
_ARITHMETIC = st.recursive(
    _NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "<", ">=", "=="]), inner).map(
            lambda parts: "({}{}{})".format(*parts)
        ),
        st.tuples(st.sampled_from(["abs", "int", "float", "str", "len", "round", "-", "not "]), inner).map(
            lambda parts: f"({parts[0]}({parts[1]}))"
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda parts: "{}({},{})".format(*parts)
        ),
        st.tuples(inner, inner, inner).map(lambda parts: "({} if {} else {})".format(*parts)),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(_ARITHMETIC)
def test_arithmetic_is_pythons(source: str) -> None:
    try:
        expected = eval(source, {"__builtins__": _PLAIN})
    except (ArithmeticError, TypeError, ValueError):
        with pytest.raises(UnresolvedError):
            evaluate_expression(f"expr({source})")
    else:
        found = evaluate_expression(f"expr({source})")
        assert repr(found) == repr(expected)


@pytest.mark.slow
@given(st.text(max_size=60))
def test_no_expression_raises_anything_else(source: str) -> None:
    with contextlib.suppress(UnresolvedError, RefusedExpressionError):
        evaluate_expression(f"expr({source})")


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "__import__('os').system('true')",
        "exec('1')",
        "eval('1')",
        "getattr(1, 'real')",
        "(lambda: 1)()",
        "[i for i in (1,)]",
        "(x := 1)",
        "''.__class__.__mro__",
        "''.format(1)",
        "(1).__class__",
        "print",
        "9**9**9",
        "1 << 10**9",
        "[0]*10**9",
        "[[0]*9999]*9999",
        "'%999999d' % 1",
        "'x'.zfill(10**9)",
        "round(1, -10**9)",
        "sum(range(10**9))",
        "-" * 9_000 + "1",
        "+".join("1" * 5_000),
        "(" * 500,
    ],
)
def test_nothing_runs_and_nothing_grows(source: str) -> None:
    with pytest.raises((RefusedExpressionError, UnresolvedError)):
        evaluate_expression(f"expr({source})")


@given(
    st.lists(
        st.sampled_from(
            [
                "{a}",
                "{b}",
                "{c}",
                "x",
                "{a:.1e}",
                "{b:>4}",
                "{a!r}",
                "{b[0]}",
                "{{a}}",
                "{",
                "}",
                "{}",
                "{0..9}",
                "{nope}",
            ]
        ),
        max_size=5,
    ).map("".join)
)
def test_texts_are_formatted_as_python_does(text: str) -> None:
    values = {"a": 0.5, "b": "text", "c": True}
    try:
        expected = text.format(**values)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        with pytest.raises(UnresolvedError):
            format_text(text, values)
    else:
        assert format_text(text, values) == expected


_KEYS = ("a", "b", "c", "d")
_TEXTS = st.one_of(
    st.integers(0, 9),
    st.sampled_from(
        ["x", "", "{{a}}", "expr(1+1)", "expr({nope}+1)", "expr(len('{a}'))", "expr({a} if True else {b})"]
    ),
    st.lists(
        st.sampled_from(["{a}", "{b}", "{c}", "{d}", "{nope}", "-", "{a:>3}"]), min_size=1, max_size=3
    ).map("".join),
    st.tuples(st.sampled_from(_KEYS), st.sampled_from(_KEYS)).map(
        lambda keys: "expr({{{}}}+{{{}}}*2)".format(*keys)
    ),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.fixed_dictionaries(dict.fromkeys(_KEYS, _TEXTS)))
def test_the_quick_way_is_the_rounds(raw: dict[str, object]) -> None:
    """A plan computes at once the result that the tool gets in several rounds."""
    quick, slow = dict(raw), dict(raw)
    if ResolutionPlan(raw, dict.fromkeys(raw, 0), [1]).resolve(quick, [0]):
        settle(slow)
        assert quick == slow
    else:
        with contextlib.suppress(EndlessError, RefusedValueError):
            settle(slow)


_YAML = st.recursive(
    st.sampled_from(
        [
            "1",
            "x",
            "yes",
            "~",
            "???",
            "'{a}'",
            "'{a}{b}'",
            "'expr({a}+1)'",
            "'expr(open(1))'",
            "${a}",
            "1e-2",
            "!!x 1",
            "*r",
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(st.sampled_from(["a", "b", "1", "name", "{", "&r c"]), inner), max_size=3).map(
            lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items) + "}"
        ),
        st.lists(st.tuples(st.sampled_from(["s", "m", "1"]), inner), max_size=3).map(
            lambda items: "[" + ", ".join(f"{{{key}: {value}}}" for key, value in items) + "]"
        ),
    ),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=10_000)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "name", "cmd", "output_file", "sbatch_script"]), _YAML),
        max_size=6,
    )
)
def test_bad_documents_are_refused_and_nothing_else(entries: list[tuple[str, str]]) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in entries)
    try:
        document, _ = load_autoexperiment_yaml(text, "spec.yaml", {})
        expand_document(document)
    except SpecError as error:
        problems = error.problems
    else:
        return
    assert problems
    assert all(problem.file == "spec.yaml" and problem.message for problem in problems)


@pytest.mark.slow
@settings(max_examples=300, deadline=10_000)
@given(st.text(alphabet="ab:{}[]-\n \"'&*#|>!%@`,?$\t0", max_size=80))
def test_random_text_is_refused_and_nothing_else(text: str) -> None:
    with contextlib.suppress(SpecError):
        document, _ = load_autoexperiment_yaml(text, "spec.yaml", {})
        expand_document(document)
