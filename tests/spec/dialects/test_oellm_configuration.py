"""Interpolations and resolvers compared with values recorded from oellm-autoexp."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_limits import processor_limit

from airflow_megatron.spec.foreign.interpolation.configuration import (
    Configuration,
    ConfigurationError,
    ResolutionContext,
    with_parameters,
)
from airflow_megatron.spec.foreign.interpolation.eval import EvaluationError, evaluate_python

_RECORDED = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "conformance" / "oellm_interpolations.json").read_text()
)


def configuration(data: dict[str, Any], **environment: str) -> Configuration:
    return Configuration(data, ResolutionContext(environment))


@pytest.mark.parametrize("case", _RECORDED["cases"], ids=lambda case: case["text"])
def test_value_equals_that_of_oellm_autoexp(case: dict[str, Any]) -> None:
    data = {**_RECORDED["configuration"], "text": case["text"]}
    resolved = Configuration(data, ResolutionContext({"OUTPUT_DIR": "/out", "HOME": "/root", "A": "1"}))
    if "refused" in case:
        with pytest.raises(ConfigurationError):
            resolved.get("text")
    else:
        assert repr(resolved.get("text")) == repr(case["value"])


def test_cycles_are_shown_as_a_chain() -> None:
    with pytest.raises(ConfigurationError, match=r"reference cycle: a\.x → b → c → a\.x"):
        configuration({"a": {"x": "${b}"}, "b": "1${c}", "c": "${a.x}"}).get("a.x")


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"backend has no 'megatrn'") as error:
        configuration({"backend": {"megatron": {"lr": 1}}, "x": "${backend.megatrn.lr}"}).get("x")
    assert error.value.hint == "did you mean 'megatron'?"
    with pytest.raises(ConfigurationError) as error:
        configuration({"backend": {"megatron": {"lr": 1}}, "x": "${lr}"}).get("x")
    assert error.value.hint == "did you mean 'backend.megatron.lr'?"


def test_clock_is_refused_unless_given() -> None:
    with pytest.raises(ConfigurationError, match="change every name"):
        configuration({"x": "${oc.timestring:}"}).get("x")
    assert Configuration({"x": "${oc.timestring:}"}, ResolutionContext({}, "now")).get("x") == "now"


def test_what_nobody_reads_does_no_harm() -> None:
    assert (
        configuration({"a": "${oc.env:UNSET}", "b": {"c": "${oc.nope:}", "d": "${e}"}, "e": 5}).get("b.d")
        == 5
    )


def test_excluded_nodes_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_SPEC_FOLDERS", str(tmp_path))
    file = tmp_path / "nodes"
    file.write_text("# bad\nn1, n2\n\nn1 n3\n")
    assert configuration({"x": f"${{oc.exclude_nodes:{file}}}"}).get("x") == "n1,n2,n3"


def test_parameters_are_set_as_overrides() -> None:
    root = {"a": {"b": 1, "c": {"d": 2}}, "l": [{"x": 1}, {"x": 2}]}
    changed = with_parameters(root, {"a.b": 3, "a.c": {"e": {}, "f": 4}, "l.1.x": 5, "n.m": [1], "g": {}})
    assert changed == {"a": {"b": 3, "c": {"d": 2, "f": 4}}, "l": [{"x": 1}, {"x": 5}], "n": {"m": [1]}}
    assert root == {"a": {"b": 1, "c": {"d": 2}}, "l": [{"x": 1}, {"x": 2}]}


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "'a' * 10**9",
        "10**9 * [1]",
        "1 << 10**9",
        "__import__('os').system('true')",
        "().__class__.__bases__",
        "[x for x in (1, 2)]",
        "(lambda: 1)()",
        "'%99999999d' % 1",
        "'{:>99999999}'.format(1)",
        "f'{1:99999999}'",
        "'x'.zfill(10**9)",
        "range(10**9)",
        "open('/etc/passwd')",
        "unquoted",
        "1 +",
        "1 // 0",
        "int('x')",
        "(" * 500 + "1" + ")" * 500,
        "+" * 9000 + "1",
    ],
)
def test_dangerous_expressions_are_refused_at_once(text: str) -> None:
    with processor_limit(1), pytest.raises(EvaluationError):
        evaluate_python(text)


@pytest.mark.parametrize("operator", ["", ","])
def test_texts_and_lists_that_double_are_bounded(operator: str) -> None:
    one = "[${{{0}}}{1}${{{0}}}]" if operator else "${{{0}}}${{{0}}}"
    data: dict[str, Any] = {"v0": ["x"] if operator else "x"}
    for number in range(1, 55):
        text = one.format(f"v{number - 1}", operator)
        data[f"v{number}"] = f"${{oc.dict_merge:{{k: {text}}}}}" if operator else text
        if operator:
            data[f"v{number}"] = [f"${{v{number - 1}}}", f"${{v{number - 1}}}"]
    with processor_limit(5), pytest.raises(ConfigurationError, match="more than"):
        configuration(data).get("v54")


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "${", "}", "'", '"', "\\", "a.b", "oc.eval:", "oc.if:", "oc.join:", ",", "[", "]", "{", ":", ".",
                "x", "1", "+", " ", "(", ")", "oc.maptmpl:", "%", "sibling.s.", "oc.select:", "oc.env:",
            ]
        ),
        max_size=14,
    ).map("".join)
)  # fmt: skip
def test_any_text_resolves_or_is_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        configuration({"text": text, "a": {"b": 3}, "x": ["1", "2"]}).get("text")


def test_created_containers_hold_resolved_interpolations() -> None:
    data = {"n": 3, "x": "${oc.create:[1, b, ${n}]}", "y": "${oc.create:{a: ${n}, b: '\\${n}'}}"}
    assert configuration(data).get("x") == [1, "b", 3]
    assert configuration(data).get("y") == {"a": 3, "b": 3}


def test_a_comma_that_is_not_quoted_is_no_part_of_a_default() -> None:
    with pytest.raises(ConfigurationError, match=r"oc\.env takes 2 arguments, not 3"):
        configuration({"x": "${oc.env:NOT_SET,a,b}"}).get("x")
    assert configuration({"x": "${oc.env:NOT_SET,'a,b'}"}).get("x") == "a,b"


def test_sets() -> None:
    assert evaluate_python("3 in {1, 2, 3} and 'a' not in set(['b'])") is True
    assert evaluate_python("len({1, 1.0, 'x'}) + len(set([1, 2]) | {2, 3})") == 5
    with pytest.raises(EvaluationError, match=r"is a set, which no key can have; write sorted"):
        evaluate_python("{1, 2}")
    with pytest.raises(EvaluationError, match="unhashable"):
        evaluate_python("1 in {[1]}")
