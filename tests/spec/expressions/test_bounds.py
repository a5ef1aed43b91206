"""Expressions, documents and sweeps that would take too long or too much memory are refused immediately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from processor_limits import processor_limit

from airflow_megatron.spec.documents import yaml_document
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import YamlDocument, load_yaml_text
from airflow_megatron.spec.expressions import bounds
from airflow_megatron.spec.expressions.resolution import (
    ExpressionError,
    compile_expression,
    evaluate,
    resolve,
)
from airflow_megatron.spec.native.sweep_grammar import count_combinations, expand_sweep
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with processor_limit(10):
        yield


NAMES: dict[str, Any] = {"x": "a" * 50_000, "items": list(range(9000)), "n": 10**9, "size": 4}


@pytest.mark.parametrize(
    "source",
    [
        "{{ 10**10000 }}",
        "{{ 10**n }}",
        "{{ (10**1000) * (10**1000) }}",
        "{{ 'x' * n }}",
        "{{ n * 'x' }}",
        "{{ [0] * n }}",
        "{{ x ~ x ~ x }}",
        "{{ x + x + x }}",
        "{{ x }}{{ x }}{{ x }}",
        "{{ items + items }}",
        "{{ x.replace('a', x) }}",
        "{{ x | replace('a', x) }}",
        "{{ x.join(items | map('string')) }}",
        "{{ items | join(x) }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '%*d' % (n, 1) }}",
        "{{ '%0999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, n) }}",
        "{{ round(5, -n) }}",
        "{{ 5 | round(n) }}",
        "{{ 'x'.center(n) }}",
        "{{ 'x' | center(n) }}",
        "{{ range(n) }}",
        "{{ lipsum(n) }}",
        "{% for i in items %}{% for j in items %}x{% endfor %}{% endfor %}",
        "{% for i in items %}{{ x }}{% endfor %}",
        "{% for i in items + items %}x{% endfor %}",
        "{% for i in [[1]] recursive %}{{ loop(i) }}{% endfor %}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% set y %}{{ x }}{% endset %}{{ y }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{{ 1" + " + 1" * 4000 + " }}",
        "{{ 1 }}" * 20_000,
        "{{ 1e999 }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ sqrt }}",
        "{{ items | map('string') }}",
        "{{ (-8) ** 0.5 }}",
        "{{ x.__class__ }}",
    ],
)
def test_expressions(source: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(source, NAMES)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{% for i in [1, 2] %}{{ loop.index }}{{ i }} {% endfor %}", "11 22 "),
        ("{% set y = size * 2 %}{{ y }}", "8"),
        ("{{ '%.0e' % 0.0001 }}", "1e-04"),
        ("{{ '{:.2f}'.format(1.5) }}", "1.50"),
        ("{{ 'a.b'.replace('.', 'p') | upper }}", "APB"),
        ("{{ [3, 1] | sort | join('-') }}", "1-3"),
        ("{{ [1, 2] | map('string') | list }}", ["1", "2"]),
        ("{{ 2**64 }}", 2**64),
        ("{{ [0] * 3 + [1] }}", [0, 0, 0, 1]),
        ("{{ missing | default(3) if false else 2.567 | round(1) }}", None),
    ],
)
def test_what_stays_possible(source: str, value: object) -> None:
    if value is None:
        with pytest.raises(ExpressionError, match="not defined"):
            evaluate(source, NAMES)
    else:
        assert evaluate(source, NAMES) == value


@pytest.mark.parametrize("operator", ["+", "*", "-", "//", "~", " and ", "|", "=="])
def test_names_of_long_expressions_are_found_at_once(operator: str) -> None:
    with processor_limit(0.3):
        found = compile_expression(
            "{{ " + operator.join(["x"] + ["list" if operator == "|" else "1"] * 230) + " }}"
        )
    assert found.names == {"x"}


def test_compilation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds.begin_spec()
    each = bounds.STEPS_OF_A_TEMPLATE + 5 * bounds.STEPS_OF_A_TOKEN
    monkeypatch.setattr(bounds._account, "allowed", 50 * each)
    for number in range(50):
        compile_expression(f"{{{{ compiled + {number} }}}}")
    with pytest.raises(ExpressionError, match="too much time together"):
        compile_expression("{{ compiled + 50 }}")
    compile_expression("{{ compiled + 1 }}")


def test_compilation_counts_the_same_in_each_spec() -> None:
    def steps() -> int:
        bounds.begin_spec()
        for _ in range(3):
            compile_expression("{{ compiled + again }}")
        return bounds._account.steps

    assert steps() == steps() > 0


def test_doubling_through_references() -> None:
    texts: dict[str, Any] = {"v0": "xxxxxxxxxx"} | {
        f"v{i}": f"{{{{ v{i - 1} ~ v{i - 1} }}}}" for i in range(1, 60)
    }
    with pytest.raises(ExpressionError, match="characters"):
        resolve(texts, {})
    lists: dict[str, Any] = {"v0": "{{ [1] }}"} | {
        f"v{i}": f"{{{{ [v{i - 1}, v{i - 1}] }}}}" for i in range(1, 60)
    }
    with pytest.raises(ExpressionError, match="items"):
        resolve(lists, {})


def test_long_chains_of_references() -> None:
    chain: dict[str, Any] = {f"v{i}": f"{{{{ v{i + 1} }}}}" for i in range(2000)} | {"v2000": 1}
    with pytest.raises(ExpressionError, match="chain of references"):
        resolve(chain, {})
    assert resolve({f"v{i}": chain[f"v{i}"] for i in range(1950, 2001)}, {})["v1950"] == 1


def test_long_sources_are_shortened_in_messages() -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression("{{ a" + " " * 30_000)
    assert len(str(caught.value)) < 1000


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("&a [*a]", "alias"),
        ("&a {<<: *a, b: 1}", "alias"),
        ("[" * 300_000, "levels of nesting"),
        ("- " * 300_000 + "a", "levels of nesting"),
        ("{a: " * 300_000, "levels of nesting"),
        ("\n".join(" " * depth + "a:" for depth in range(2000)), "levels of nesting"),
        ("a: " + "9" * 6000, "too long"),
        ("a: 0x_", "malformed"),
        ("a: \ud800", "not valid YAML"),
        ("a: b\x00", "not valid YAML"),
        ("a: *nowhere", "no anchor"),
        ("a: 1\n---\nb: 2\n", "more than one document"),
        ("x" * 32_000_001, "longer than"),
    ],
)
def test_documents(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        load_yaml_text(text, "spec.yaml")


@pytest.mark.slow
def test_an_alias_bomb_is_left_before_it_bursts() -> None:
    with pytest.raises(SpecError, match="aliases repeat more than 300000 values"):
        load_yaml_text(BOMB, "spec.yaml")


@pytest.mark.slow
def test_many_written_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_document, "MAX_NODES", 20_000)  # a million of them take several seconds
    text = "a: [" + "1, " * 19_998 + "]"
    assert len(load_yaml_text(text, "spec.yaml").data["a"]) == 19_998
    with pytest.raises(SpecError, match="the document holds more than 20000 values"):
        load_yaml_text(text.replace("[", "[1, 1, "), "spec.yaml")


@pytest.mark.slow
def test_deep_values_count_more_than_once() -> None:
    text = "[" * 62 + "1, " * 130_000 + "]" * 62
    with pytest.raises(SpecError, match="more than 1000000 values"):
        load_yaml_text(text, "spec.yaml")


def test_tags_are_never_acted_upon() -> None:
    document = load_yaml_text("a: !!python/object/apply:os.system ['touch x']", "spec.yaml")
    assert document.data == {"a": ["touch x"]}


def test_the_size_of_a_sweep_is_known_before_it_is_expanded() -> None:
    axes = {f"v{i}": list(range(100)) for i in range(10)}
    document = YamlDocument("spec.yaml", {"sweep": axes}, {("sweep",): (3, 1)})
    assert count_combinations(axes, document) == 100**10
    with pytest.raises(
        SpecError, match=r"spec.yaml:3:1: 100000000000000000000 combinations; at most 1000000"
    ):
        expand_sweep(axes, document)


@pytest.mark.parametrize(
    "block",
    [
        {"a": [1, 2], "params": {"b": [1, 2, 3]}},
        {"type": "list", "groups": [{"a": [1, 2]}, {"configs": [{"a": 3}, {"groups": [{"a": [4, 5]}]}]}]},
        {"grids": [{"a": [1, 2], "b": [1, 2]}, {"a": 7}], "defaults": {"c": 1}},
        {"type": "list"},
        {"defaults": {"a": 1}},
        {"groups": [{"a": [1, 2], "filter": False}, {"b": [1, 2]}], "list_composition": ["a"]},
    ],
)
def test_count_and_expansion_agree(block: dict[str, Any]) -> None:
    document = YamlDocument("spec.yaml", {"sweep": block})
    assert count_combinations(block, document) == len(list(expand_sweep(block, document)))


LARGE = """
point: "s{{ size }}_lr{{ lr }}_seed{{ seed }}"
megatron: {{train_iters: "{{{{ size * 100 }}}}"}}
sweep:
  filter: "{{{{ lr * size < 1e9 }}}}"
  params:
    size: [{sizes}]
    lr: [1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4, 9e-4, 1e-3]
    seed: [{seeds}]
stages: {{pretrain: {{kind: train}}}}
"""


@pytest.mark.slow
def test_ten_thousand_points() -> None:
    numbers = ", ".join(map(str, range(1, 33)))
    text = LARGE.replace(
        "{{ size }}_lr{{ lr }}_seed{{ seed }}", "{{{{ size }}}}_lr{{{{ lr }}}}_seed{{{{ seed }}}}"
    )
    sweep = load_sweep_text(text.format(sizes=numbers, seeds=numbers), "large.yaml")
    with processor_limit(2.0):  # 0.2 s on an idle core
        assert len(sweep.points) == 10_240
