"""Expressions: native values, references in any order, clear errors, and the sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.expressions.resolution import (
    ExpressionError,
    evaluate,
    evaluate_tree,
    resolve,
    template_names,
)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ nodes * gpus }}", 8),
        ("{{ lr }}", 1e-5),
        ("{{ lr < 1e-2 }}", True),
        ("{{ [nodes, 'x'] }}", [2, "x"]),
        ("{{ {'a': nodes} }}", {"a": 2}),
        ("{{ none }}", None),
        ("{{ '10' }}", "10"),
        ("{{ '1' ~ '2' }}", "12"),
        ("lr{{ lr }}", "lr1e-05"),
        ("{{ nodes }}x{{ gpus }}", "2x4"),
        ("{% if nodes > 1 %}many{% else %}one{% endif %}", "many"),
        ("{{ 7 / 2 }}", 3.5),
        ("{{ ceil_div(7, 2) }}", 4),
        ("{{ round_up(241, 10) }}", 250),
        ("{{ iterations('600k', 128, 16) }}", 293),
        ("{{ duration('1h30m') }}", 5400),
        ("{{ quantity('2B') }}", 2_000_000_000),
        ("{{ sqrt(16) + log2(8) }}", 7.0),
        ("{{ max(nodes, gpus) }}", 4),
        ("{{ range(3) | list if false else 'no' }}", "no"),
    ],
)
def test_values(source: str, value: Any) -> None:
    names: dict[str, Any] = {"nodes": 2, "gpus": 4, "lr": 1e-5, "range": 0}
    got = evaluate(source, names)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.slow
@given(st.recursive(st.integers() | st.text() | st.booleans() | st.none(), st.lists, max_leaves=5))
def test_one_expression_keeps_value_and_type(value: Any) -> None:
    assert evaluate("{{ x }}", {"x": value}) is value


@given(st.text())
def test_values_are_never_read_as_expressions_again(text: str) -> None:
    hostile = text + "{{ 1 + 1 }}"
    assert evaluate("{{ x }}", {"x": hostile}) == hostile
    assert evaluate("a{{ x }}", {"x": hostile}) == "a" + hostile


def test_trees() -> None:
    tree = {"a": ["{{ n + 1 }}", 3, {"b": "n{{ n }}"}], "c": None}
    assert evaluate_tree(tree, {"n": 1}) == {"a": [2, 3, {"b": "n1"}], "c": None}
    assert template_names(tree) == {"n"}


def test_references_in_any_order() -> None:
    raw = {"c": "{{ b + 1 }}", "a": "{{ 10 }}", "b": ["{{ a }}"], "d": "{{ b[0] + c_ }}", "c_": 1}
    assert resolve({**raw, "c": "{{ d + 1 }}"}, {}) == {"a": 10, "b": [10], "c_": 1, "d": 11, "c": 12}


def test_only_what_is_wanted_is_resolved() -> None:
    assert resolve({"a": "{{ 1 / 0 }}", "b": "{{ x }}"}, {"x": 5}, ["b"]) == {"b": 5}


@given(st.permutations(range(12)))
def test_a_long_chain_in_any_order(order: list[int]) -> None:
    raw = {f"v{i}": f"{{{{ v{i - 1} + 1 }}}}" if i else 0 for i in order}
    assert resolve(raw, {}) == {f"v{i}": i for i in range(12)}


def test_cycles_are_shown_as_a_chain() -> None:
    raw = {"x": "{{ a }}", "a": "{{ b }}", "b": "{{ c }}", "c": "{{ a }}"}
    with pytest.raises(
        ExpressionError, match=r"reference cycle: a → b → c → a \(write the value of one of them"
    ):
        resolve(raw, {})
    with pytest.raises(
        ExpressionError,
        match=r"reference cycle: a → a \(a is defined by itself; drop it",
    ):
        resolve({"a": "{{ a + 1 }}"}, {"a": 3})


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{{ gpu_per_node }}", "'gpu_per_node', which is not defined; did you mean 'gpus_per_node'?"),
        ("{{ thing.part }}", "there is no entry 'part'"),
        ("{{ thing.part.size }}", "there is no entry 'part'"),
        ("{{ thing.whol.size }}", "there is no entry 'whol'; did you mean 'whole'?"),
        ("{{ gpus_per_node.count }}", "a number has no entry 'count'"),
        ("{{ 'a'.length }}", "a text has no entry 'length'"),
        ("{{ [1, 2].size }}", "a list has no entry 'size'"),
        ("{{ [1, 2][2] }}", "there is no item 2: the list has 2, from 0 on"),
        ("{{ none.size }}", "nothing (null) has no entry 'size'"),
        ("{{ true.size }}", "a truth value has no entry 'size'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ gpus_per_node + 'a' }}", "TypeError"),
        ("{{ int('x') }}", "ValueError"),
        ("{{ params.gpus_per_node }}", "which is not defined; write gpus_per_node, not params.gpus_per_node"),
        ("{{ gpus_per_node.whole }}", "a number has no entry 'whole'; did you mean thing.whole?"),
        ("{{ }}", "not a valid expression: it is empty"),
        ("{{ gpus_per_node * }}", "not a valid expression: it ends too early"),
        ("{{ gpus_per_node | }}", "it ends too early: 'name' is missing"),
        ("{{ iterations(2B, 4) }}", "2B is not a number; write it in quotes: '2B'"),
        ("{{ gpus_per_node thing }}", "not a valid expression: unexpected 'thing'"),
        ("{{ a = 1 }}", "got '='; write == to compare"),
        ("{{ a && b }}", "; write and"),
        ("{{ a || b }}", "; write or"),
        ("{{ !a }}", "; write not"),
        ("{{ a ? 1 : 2 }}", "; write a if condition else b"),
        ("{{ 1 +", "not a valid expression"),
        ("{% if %}", "not a valid expression"),
        ("{{ 3 | nofilter }}", "nofilter"),
        ("{{ quantity('much') }}", "is not a quantity"),
    ],
)
def test_errors_name_the_expression_and_the_cause(source: str, told: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(source, {"gpus_per_node": 4, "thing": {"whole": 1}})
    assert told in str(caught.value)
    assert repr(source) in str(caught.value)


@pytest.mark.parametrize(
    "raw", [{"a": "{{ seq_len }}", "seq_length": 64}, {"seq_length": "{{ 64 }}", "a": ["{{ seq_len }}"]}]
)
def test_the_hint_for_a_name_includes_values_of_any_order(raw: dict[str, Any]) -> None:
    with pytest.raises(ExpressionError, match="did you mean 'seq_length'"):
        resolve(raw, {})


def test_the_failing_name_is_reported() -> None:
    with pytest.raises(ExpressionError, match="total: "):
        resolve({"total": "{{ nodes * missing }}", "nodes": 2}, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ (''|attr('__class__')) }}",
        "{{ x.__init__.__globals__ }}",
        "{{ iterations.__globals__ }}",
        "{{ iterations.__code__ }}",
        "{{ '{0.__class__}'.format(3) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ x.append(1) }}",
        "{{ open('/etc/passwd') }}",
        "{{ __import__('os') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "a{{ ''.__class__ }}",
        "{{ range(10 ** 9) }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(source, {"x": [1]})
