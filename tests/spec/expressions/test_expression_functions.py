"""Helpers of expressions: arithmetic, token counts, warm-up rules, model sizes, initialisation."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.expressions.file_values import file_value, path_of
from airflow_megatron.spec.expressions.functions import (
    FUNCTIONS,
    approximate_parameters,
    ceil_div,
    ffn_size,
    gpt_parameters,
    iterations,
    output_init_std,
    padded_vocab,
    round_down,
    round_up,
    small_init_std,
    tokens_in,
    training_flops,
    warmup_for_fraction,
    warmup_for_parameters,
    warmup_for_tokens,
)
from airflow_megatron.spec.expressions.resolution import ExpressionError, evaluate, resolve

WHOLE = st.integers(min_value=0, max_value=10**15)
POSITIVE = st.integers(min_value=1, max_value=10**9)


@given(WHOLE, POSITIVE)
def test_rounding_to_multiples(value: int, multiple: int) -> None:
    assert round_down(value, multiple) <= value <= round_up(value, multiple)
    assert round_up(value, multiple) - round_down(value, multiple) in (0, multiple)
    assert round_up(value, multiple) % multiple == round_down(value, multiple) % multiple == 0
    assert ceil_div(value, multiple) == round_up(value, multiple) // multiple


@given(WHOLE, POSITIVE, POSITIVE)
def test_iterations_are_the_fewest_that_consume_the_tokens(tokens: int, seq_length: int, batch: int) -> None:
    count = iterations(tokens, seq_length, batch)
    assert tokens_in(count, seq_length, batch) >= tokens
    assert count == 0 or tokens_in(count - 1, seq_length, batch) < tokens


def test_warm_up_rules() -> None:
    assert warmup_for_fraction(10_000) == 100
    assert warmup_for_fraction(10_000, 0.5, at_most=2000) == 2000
    assert warmup_for_tokens("100M", 2048, 256) == 190
    assert warmup_for_tokens(1, 2048, 256) == 1
    # the study's 50M model, as AutoExperiment expands it
    parameters = approximate_parameters(12, 384, 50304)
    assert [warmup_for_parameters(parameters, 2048, batch) for batch in (16, 64, 128)] == [2475, 618, 309]
    assert warmup_for_parameters(10**12, 2048, 16) == 5000
    assert warmup_for_parameters(parameters, 2048, 64, tokens_per_parameter=1) == 309


def test_parameters_of_gpt2() -> None:
    """Radford et al.'s models: learned positions, biases, tied embeddings, vocabulary not padded."""
    gpt2 = gpt_parameters(12, 768, 50257, 12, positions=1024)
    xl = gpt_parameters(48, 1600, 50257, 25, positions=1024)
    assert (gpt2, xl) == (124_439_808, 1_557_611_200)


def test_parameters_of_llama() -> None:
    """Touvron et al. 2023, table 2: the 7B model has 6,738,415,616; Llama 3 8B (grouped queries) 8,030,261,248."""
    llama = {"swiglu": True, "bias": False, "rms_norm": True, "untied": True}
    assert gpt_parameters(32, 4096, 32000, 32, ffn_hidden_size=11008, **llama) == 6_738_415_616
    assert (
        gpt_parameters(32, 4096, 128256, 32, ffn_hidden_size=14336, num_query_groups=8, **llama)
        == 8_030_261_248
    )


def test_layernorms_of_queries_and_keys() -> None:
    with_norms = gpt_parameters(2, 64, 128, 4, qk_layernorm=True, rms_norm=True)
    assert with_norms - gpt_parameters(2, 64, 128, 4, rms_norm=True) == 2 * 2 * 16


@pytest.mark.parametrize(
    ("hidden", "swiglu", "size"), [(768, False, 3072), (4096, True, 10880), (896, True, 2368)]
)
def test_feed_forward_size(hidden: int, swiglu: bool, size: int) -> None:
    assert ffn_size(hidden, swiglu) == size


@pytest.mark.parametrize(
    ("vocab", "tensor_parallel", "padded"), [(50257, 1, 50304), (50257, 4, 50688), (50304, 1, 50304)]
)
def test_padded_vocabulary(vocab: int, tensor_parallel: int, padded: int) -> None:
    assert padded_vocab(vocab, tensor_parallel) == padded


def test_initialisation_and_compute() -> None:
    assert small_init_std(640) == pytest.approx(0.025)
    assert output_init_std(0.02, 50) == pytest.approx(0.002)
    assert training_flops(10**9, "20B") == 12 * 10**19
    assert math.log10(training_flops(70_000_000_000, "1.4T")) == pytest.approx(23.77, abs=0.01)


def test_expressions_reach_them_and_names_of_the_spec_win() -> None:
    assert (
        evaluate("{{ gpt_parameters(12, 768, padded_vocab(50257), 12, positions=1024) }}", {}) == 124_475_904
    )
    assert evaluate("{{ 2 * tokens_in }}", {"tokens_in": 4}) == 8
    assert evaluate("{{ round(2.567, 1) }}", {}) == 2.6
    assert all(function.__doc__ for function in FUNCTIONS.values())


def test_values_that_an_earlier_job_writes():
    assert file_value("/runs/x/lr") == "@file:/runs/x/lr"
    assert path_of(file_value("/runs/x/lr")) == "/runs/x/lr"
    assert path_of("1e-3") is None
    assert path_of(3) is None
    with pytest.raises(ValueError, match="not absolute"):
        file_value("lr")


LATER = {"lr": file_value("/runs/x/lr"), "lrs": [file_value("/runs/x/lr"), "/data"], "n": 2, "text": "x"}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ lr }}", "@file:/runs/x/lr"),
        ("{{ lr if n > 1 else 0.1 }}", "@file:/runs/x/lr"),
        ("{{ n > 1 and lr }}", "@file:/runs/x/lr"),
        ("{{ text.missing | default(lr) }}", "@file:/runs/x/lr"),
        ("{{ lr | default(0.1) }}", "@file:/runs/x/lr"),
        ("{% if n > 1 %}{{ lr }}{% else %}0.1{% endif %}", "@file:/runs/x/lr"),
        ("{{ lrs[0] }}", "@file:/runs/x/lr"),
        ("{{ lrs | first }}", "@file:/runs/x/lr"),
        ("{{ [lr, 'a'] + ['b'] }}", ["@file:/runs/x/lr", "a", "b"]),
        ("{{ sum([[lr], ['b']], []) }}", ["@file:/runs/x/lr", "b"]),
        ("{{ {'a': lr}['a'] }}", "@file:/runs/x/lr"),
        ("{{ {'a': lr}.get('a') }}", "@file:/runs/x/lr"),
        ("{{ len(lrs) + lrs | length }}", 4),
        ("{{ lr is defined and lr is not none }}", True),
        ("{{ lrs is sequence }}", True),
    ],
)
def test_such_values_are_passed_on(source: str, value: object) -> None:
    assert evaluate(source, LATER, from_files=True) == value


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "lr * 2",
            "2 * lr",
            "lr / 2",
            "lr - 1",
            "lr + 1",
            "lr + 'a'",
            "lr // 2",
            "lr % 2",
            "lr ** 2",
            "-lr",
        ),
        *(
            "'%s' % lr",
            "'%s%s' % (lr, 1)",
            "lr ~ '0'",
            "'' ~ lrs",
            "lr == 1",
            "n < lr",
            "lrs == [1]",
            "lr in [1]",
        ),
        *(
            "lr | float",
            "lr | int",
            "(lr | float) / 2",
            "lr | round",
            "lr | string",
            "lr | upper",
            "lr | length",
        ),
        *(
            "lrs | join",
            "lrs | max",
            "lrs | sort",
            "lrs | reverse | max",
            "lrs | map('float') | list",
            "lrs | sum",
        ),
        *(
            "lrs | reverse | join",
            "lrs | string",
            "lrs | select('eq', 'x') | list",
            "text | replace('x', lr)",
        ),
        *(
            "float(lr)",
            "int(lr)",
            "str(lr)",
            "min(lr, 1)",
            "max(lrs)",
            "round(lr, 2)",
            "len(lr)",
            "sum([lr])",
        ),
        *("iterations(lr, 8, 8)", "quantity(lr)", "duration(lr)", "file_value(lr)", "'{}'.format(lr)"),
        *(
            "1 if lr else 2",
            "not lr",
            "lr or 1",
            "lr and 1",
            "1 if lr == 1 else 2",
            "lr is string",
            "lr is eq 1",
        ),
        *("lr[0]", "lr[2:]", "lr.upper()", "lr.split('/')", "', '.join(lrs)"),
    ],
)
def test_expressions_cannot_compute_with_such_values(expression: str) -> None:
    message = "the value of file_value is known only when the job starts, so it must be the whole value"
    with pytest.raises(ExpressionError, match=re.escape(f"{{{{ {expression} }}}}") + f".*: {message}$"):
        evaluate(f"{{{{ {expression} }}}}", LATER, from_files=True)


@pytest.mark.parametrize(
    "source",
    [
        *("lr{{ lr }}", "{{ lr }} ", "{{ lr }}{{ lr }}", "x{{ lrs }}"),
        *("{% for c in lr %}{{ c }}{% endfor %}", "{% if lr %}a{% endif %}"),
    ],
)
def test_such_values_are_no_part_of_a_text(source: str) -> None:
    with pytest.raises(ExpressionError, match="so it must be the whole value"):
        evaluate(source, LATER, from_files=True)


def test_a_name_of_such_a_value_is_one_too() -> None:
    raw = {"lr": "{{ file_value('/lr') }}", "min_lr": "{{ lr / 10 }}", "peak": "{{ lr }}"}
    assert resolve(raw, {}, ["peak"])["peak"] == "@file:/lr"
    with pytest.raises(ExpressionError, match=r"^min_lr: .*so it must be the whole value"):
        resolve(raw, {})


def test_what_is_needed_before_the_job_starts_is_no_such_value() -> None:
    message = "so only Megatron arguments and words of command can be read from files"
    for source in ("{{ lr }}", "{{ [n, lrs] }}", "{% if n > 1 %}{{ lr }}{% endif %}"):
        with pytest.raises(ExpressionError, match=message):
            evaluate(source, LATER)


def test_every_function_is_documented() -> None:
    text = (project_root() / "docs" / "spec.md").read_text(encoding="utf-8")
    section = text.partition("## Expressions")[2].partition("## `sweep`")[0]
    assert [name for name in FUNCTIONS if not re.search(rf"`{name}[`(]", section)] == []
    assert evaluate("{{ sqrt(2 / 5) }}", {}) == pytest.approx(0.632, abs=5e-4)
