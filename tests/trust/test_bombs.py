"""Specs that would take too long or too much memory are read or refused in bounded time."""

from __future__ import annotations

import math
import re
import resource
from typing import TYPE_CHECKING

import probed_specs
import pytest
from probed_specs import AUTOEXPERIMENT, MOST_SECONDS, NATIVE, OELLM, TEMPLATE, errors_of, shown
from processor_limits import processor_limit

from airflow_megatron.megatron.rules.nearest import divisors
from airflow_megatron.spec.expressions import bounds
from airflow_megatron.spec.expressions.resolution import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

MOST_MIB = 500


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MIB * 1024


EXPRESSIONS = [
    *("sum([[1]*9000]*9000, [])", "duration('1'*50000 ~ 'x')", "quantity('1'*90000 ~ 'x')", "str([s]*9000)"),
    *(
        "str(['x'*90000]*9000)|length",
        "[['x'*9000]*9000]*9000",
        "'' ~ ['x'*90000]*9000",
        "[a, a, a, a]|string|length",
    ),
    *(
        "(['x'*90000]*9000)|string|length",
        "([[1]*9000]*9000)|sum(start=[])",
        "max([[1]*9000]*9000)",
        "[[a]*90]*90",
    ),
    *(
        "([[1]*9000]*9000)|sort",
        "([['x'*90000]*9000]*9000)|map('string')|list|length",
        "[[1]*9000]*9000 == [a]*9000",
    ),
    *(
        "5 in ([[1]*9000]*9000)",
        "'{}'.format(['x'*90000]*9000)",
        "('%s' % (['x'*90000]*9000,))",
        "2.0**100000",
    ),
    *(
        "round(1e300, -400)",
        "int('9'*90000)",
        "ffn_size(10**1000, true)",
        "exp(10**5)",
        "iterations(10**1000, 1, 1)",
    ),
    *(
        "gpt_parameters(10**900, 10**900, 10**900, 1)",
        "approximate_parameters('x'*90000, 2)",
        "sum([(1,)*9000]*9000, ())",
    ),
    *(
        "tokens_in('x'*90000, 9000, 900)",
        "training_flops([1]*9000, 10**6)",
        "padded_vocab([1]*9000, 9000)",
        "a + a",
    ),
    *(
        "tokens_in([[1]*9000], 900, 9000)",
        "warmup_for_fraction('x'*9000, 90000)",
        "small_init_std(10**1200)",
        "{'a': b}",
    ),
    *(
        "sqrt(10**1200)",
        "({'a': [1]*9000}|dictsort|string)*9000",
        "('x'*90000).replace('x','xx')",
        "abs('x')",
        "b|string",
    ),
    *(
        "round_up('x'*900, 900)",
        "ceil_div([1], 2)",
        "gcd(10**1200, 7)",
        "[[[['x'*90000]*90]*90]*90]",
        "(1, a, [a, b])*90",
    ),
    *(
        "[" + "sum([[1]]*4900,[])==1," * 700 + "]",
        "[" + "([[1]]*4900)|sum(start=[])==1," * 600 + "]",
        "('%(a)s'*16000 % {'a': 'x'*90000})|length",
        "('%999d'*9000 % ((1,)*9000))|length",
        "('{0}'*30000).format('x'*90000)|length",
    ),
]
WORK = [
    *("s|sort", "s|unique|list", "s|list", "s|max", "(n//m)", "n%m", "m*m", "a[1:]", "2 in a", "2 is in a"),
    *(
        "a|map('string')|list",
        "{'a': 1}.keys()|sort",
        "max(s)",
        "n|string",
        "n~n",
        "[n]*9000",
        "int('v'*99999, 32)",
    ),
]
"""Operations that go through many items, characters or digits; they are repeated in loops."""
TRAINING = """\
name: study
cluster: local
trainer: megatron_core
point: only
stages:
  run:
    kind: train
    slurm: {time: 10m}
"""
LOOPS = [
    "{% for i in [1]*9000 %}{{ '' if ([1]*9000)|sort|sum > 0 }}{% endfor %}",
    "{% for i in [1]*9000 %}{{ '' if str([1]*9000)|length > 0 }}{% endfor %}",
    "{% for i in [1]*9000 %}{{ '' if ('x '*49000).split()|length > 0 }}{% endfor %}",
    "{% for i in [1]*9000 %}{{ '' if ('x'*90000)|upper|lower == 'y' }}{% endfor %}",
    "{% for i in [1]*9000 %}{{ '' if max([1]*9000) > 0 }}{% endfor %}",
    "{% set a=[1]*9000 %}{% set b=[a]*9000 %}{% set c=[b]*9000 %}{{ c|string|length }}",
    # none of them iterates over many values
    *(
        f"{{% for i in [1]*9000 %}}{body * (2_000 // len(body))}{{% endfor %}}"
        for body in (
            "{% set x = 1" + "+1" * 150 + " %}",
            "{% set x = i" + "*i" * 150 + " %}",
            "{% set x = 'a'" + "~'a'" * 150 + " %}",
            "{% set x = i" + "-1" * 150 + " %}",
            "{% set x = i%2 %}",
            "{% set x = i.real %}",
            "{% if i == 1 == 1 %}{% endif %}",
            "{% if loop.index > 3 %}{% endif %}",
            "{% set x = [i][0] %}",
            "{% set x = (i, i) %}",
            "{% set x = {'a': i}.a %}",
            "{{ '' if i else '' }}",
            "{% set x = not i %}",
            "{% set x = -i %}",
            "{% set x = i // 3 %}",
            "{% set x = i / 3 %}",
            "{% set x = i ** 2 %}",
            "{% set x = i in [1] %}",
            "{% set x = 'ab'[i:] %}",
            "{% set x = i is odd %}",
        )
    ),
]
NATIVE_PLACES = {
    "variable": NATIVE.replace("hello", '"{{ v }}"')
    + "params: {s: '{{ \"x\"*90000 }}', a: '{{ [1]*9000 }}', @}\n",
    "chain": NATIVE.replace("hello", '"{{ w }}"')
    + "params: {s: '{{ \"x\"*90000 }}', a: '{{ [1]*9000 }}', @, w: '{{ [v, v] }}'}\n",
}


def _native(place: str, source: str) -> str:
    quoted = source.replace("'", "''")
    text = NATIVE_PLACES[place].replace("@", f"b: '{{{{ [a]*9000 }}}}', v: '{quoted}'")
    return text if re.search(r"\bb\b", source) else text.replace("b: '{{ [a]*9000 }}', ", "")


@pytest.mark.parametrize("place", NATIVE_PLACES)
@pytest.mark.parametrize("source", EXPRESSIONS)
def test_expressions(source: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(_native(place, f"{{{{ {source} }}}}"))
    shown(tmp_path / "study.yaml")


@pytest.mark.parametrize("source", LOOPS)
def test_loops(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fifth of the steps that specs have, in a fifth of the time."""
    monkeypatch.setattr(bounds, "MAX_STEPS", bounds.MAX_STEPS // 5)
    monkeypatch.setattr(probed_specs, "MOST_SECONDS", probed_specs.MOST_SECONDS / 5)
    (tmp_path / "study.yaml").write_text(_native("variable", source))
    assert "study.yaml:" in errors_of(tmp_path / "study.yaml")


@pytest.mark.parametrize("source", WORK)
def test_work_in_loops(source: str, tmp_path: Path) -> None:
    names = "{% set s='x'*90000 %}{% set a=[1]*9000 %}{% set n=10**1200 %}{% set m=10**600 %}"
    body = f"{{% set c={source} %}}" * 40
    text = f"{names}{{% for i in [1]*9000 %}}{body}{{% endfor %}}"
    (tmp_path / "study.yaml").write_text(_native("variable", text))
    assert "study.yaml:" in shown(tmp_path / "study.yaml")


def test_functions_in_loops() -> None:
    assert evaluate("{% for i in [1, 5] %}{{ max(i, 3) }}{% endfor %}", {}) == "35"


def test_many_expensive_expressions(tmp_path: Path) -> None:
    many = "\n".join(f"  c{index}: '{{{{ ([1]*9000)|sort|sum + {index} }}}}'" for index in range(3000))
    use = NATIVE.replace("hello", '"{{ ' + " + ".join(f"c{index}" for index in range(2000)) + ' }}"')
    (tmp_path / "study.yaml").write_text(f"{use}params:\n{many}\n")
    assert "study.yaml:" in shown(tmp_path / "study.yaml")


WRONG_NAMES = {
    "keys": NATIVE + "".join(f"xkey{index}: 1\n" for index in range(30_000)),
    "keys of a stage": NATIVE + "".join(f"    xkey{index}: 1\n" for index in range(30_000)),
    "arguments": TRAINING
    + "megatron: {"
    + ", ".join(f"num_layerz{index}: 1" for index in range(30_000))
    + "}\n",
    "swept values": TRAINING.replace(
        "\nstages:",
        f"\nsweep: {{params: {{{', '.join(f'xq{index}: [1]' for index in range(20_000))}}}}}\nstages:",
        1,
    ),
    "expressions": NATIVE
    + "params:\n"
    + "".join(f"  p{index}: '{{{{ q{index} }}}}'\n" for index in range(30_000)),
    "fields": AUTOEXPERIMENT + "".join(f"k{index}: '{{foo{index}}}'\n" for index in range(20_000)),
    "interpolations": OELLM + "".join(f"k{index}: ${{kk{index}}}\n" for index in range(20_000)),
}


@pytest.mark.parametrize("what", WRONG_NAMES)
def test_many_wrong_names(what: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(WRONG_NAMES[what])
    (tmp_path / "job.sbatch").write_text(TEMPLATE)
    with processor_limit(MOST_SECONDS):
        text = errors_of(tmp_path / "study.yaml")
    assert len(text.splitlines()) <= 501


def test_many_different_expressions_are_compiled(tmp_path: Path) -> None:
    params = "".join(f"  v{index}: '{{{{ [{'1+1,' * 4_000}{index}] }}}}'\n" for index in range(40))
    (tmp_path / "study.yaml").write_text(f"{NATIVE}params:\n{params}")
    assert "take too much time together" in errors_of(tmp_path / "study.yaml")


@pytest.mark.parametrize("source", ["[" + "1+1," * 4_000 + "]", "[" + "1*1," * 4_000 + "]"])
def test_long_expressions_of_many_points(source: str, tmp_path: Path) -> None:
    axes = ", ".join(f"a{index}: {list(range(20))}" for index in range(2))
    text = NATIVE.replace("point: only", "point: 'p{{ a0 }}_{{ a1 }}_{{ v0|length }}'")
    text += f"sweep: {{params: {{{axes}}}}}\nparams:\n"
    text += "".join(f'  v{index}: "{{{{ {source} }}}}"\n' for index in range(12))
    (tmp_path / "study.yaml").write_text(text)
    assert "take too much time together" in errors_of(tmp_path / "study.yaml")


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ [1]*9000 | length }}", None),
        ("{{ ([1]*9000)|sum }}", "9000"),
        ("{{ sum([[1]*50]*50, [])|length }}", "2500"),
        ("{{ ([[1], [2]]|sum(start=[]))[1] }}", "2"),
        ("{{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }}", "3"),
        ("{{ '%5.1f_%d_%s' % (1.5, 2, 'x') }}", "  1.5_2_x"),
        ("{{ ['b', 'a', 'a']|unique|sort|join }}", "ab"),
        ("{{ str([1, [2, 'x']]) }}", "[1, [2, 'x']]"),
        ("{{ iterations('2B', 4096, 1024) }}", "477"),
        ("{{ tokens_in(10, 2, 3) }}", "60"),
        ("{% for i in [1, 2, 3] %}{{ i }}{% endfor %}", "123"),
        ("{{ {'a': [1, 2]}['a'][1] }}", "2"),
        ("{{ gpt_parameters(2, 64, 1000, 4, swiglu=true) > 0 }}", "True"),
    ],
)
def test_what_people_write_still_works(source: str, value: str | None, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(NATIVE.replace("hello", '"' + source + '"'))
    text = shown(tmp_path / "study.yaml")
    if value is not None:
        assert f'"command": ["echo", "{value}"]' in text


OELLM_BOMBS = [
    *(
        "${oc.mapcondtmpl:'(a|a)*b',%,-,[" + "a" * 60 + "]}",
        "${oc.eval:round(1,-10**9)}",
        "${oc.eval:" * 3000 + "1",
    ),
    *(
        "${oc.eval:'round(10**2000,-10**9)'}",
        "${oc.eval:" * 3000 + "1" + "}" * 3000,
        "${a" * 3000,
        "${a" * 9000 + "}",
    ),
    *(
        "${oc.add:1," * 55 + "1" + "}" * 55,
        "${oc.eval:'[[1]*90000]*90000'}",
        "${oc.eval:'str([[1]*9000]*90000)'}",
    ),
    *(
        "${oc.eval:'sum([[1]*9000]*9000,[])'}",
        "${oc.mapeval:[" + ",".join(["'sum([[1]*300]*300,[])'"] * 200) + "]}",
    ),
    *("${oc.muli:" + ",".join(["9" * 900] * 200) + "}", "${oc.eval:'9**9**9'}", "${oc.eval:'1<<10**9'}"),
    *(
        "${oc.join:${oc.eval:'\"a\"*90000'},${oc.eval:'[\"a\"]*90000'}}",
        "${oc.tmpl:" + "%" * 900 + ",${oc.eval:'\"a\"*90000'}}",
    ),
    *(
        "${oc.maptmpl:" + "%" * 900 + ",${oc.eval:'[\"a\"*900]*900'}}",
        "${oc.eval:'range(10**9)'}",
        "${oc.pad_iter:" + "9" * 5000 + "}",
    ),
    *(
        "${oc.slice:abc," + "9" * 5000 + ",1}",
        "${oc.slurmtime:" + "9" * 4400 + "}",
        "${oc.int:" + "9" * 5000 + "}",
    ),
    *(
        "${oc.eval:'int(\"9\"*90000)'}",
        "${oc.eval:" + "-" * 9000 + "1}",
        "${oc.eval:'" + "(" * 4000 + "1" + ")" * 4000 + "'}",
    ),
    *(
        "${oc.len:" + "[" * 3000 + "]" * 3000 + "}",
        "${oc.select:" + "a." * 9000 + "b}",
        "${oc.mul_round_int:1e308,1e308,1}",
    ),
    *(
        "${oc.eval:'str([\"a\"*90000]*90000)'}",
        '${oc.eval:\'("a"*90000).join(["a"]*90000)\'}',
        "${oc.eval:'1+'*4000}",
    ),
    *(
        "${oc.eval:'max([[1]*9000]*9000,[[1]*9000]*9000)'}",
        "${oc.eval:'10**2000/3'}",
        "${oc.sqrt:" + "9" * 4000 + "}",
    ),
    *(
        "${oc.mapkeyvaltmpl:" + "%k%v" * 90 + ",{" + ",".join(f"a{i}: b" for i in range(2000)) + "}}",
        "${oc.dict_merge:1,2}",
    ),
    *(
        "${oc.len:${oc.mapvaltmpl:${oc.eval:\"'%v'*20000\"},{a:${oc.eval:\"'a'*50000\"}}}}",
        "${oc.len:${oc.mapkeyvaltmpl:${oc.eval:\"'%v'*50000\"},{"
        + ",".join(f"a{index}: {'b' * 30}" for index in range(1000))
        + "}}}",
        "${oc.len:${oc.mapeval:[" + ",".join(["'\"a\"*900000'"] * 1000) + "]}}",
    ),
]
OELLM_PLACES = {
    "command": OELLM.replace("hello", "'@'"),
    "name": OELLM.replace("name: study", "name: '@'"),
    "base value": OELLM.replace("base_values: {}", "base_values: {job.name: '@'}"),
}


@pytest.mark.parametrize("place", OELLM_PLACES)
@pytest.mark.parametrize("index", range(len(OELLM_BOMBS)))
def test_oellm_files(index: int, place: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        OELLM_PLACES[place].replace("@", OELLM_BOMBS[index].replace("'", "''"))
    )
    assert len(shown(tmp_path / "study.yaml")) < 2_500_000


AE_BOMBS = [
    *(
        "'" + "${" * 3000 + "'",
        "'" + "${a" * 3000 + "}" * 3000 + "'",
        ":".join(["59"] * 200_000),
        "1" + ":0" * 300_000 + ".5",
    ),
    *(
        "9" * 600_000,
        "0b" + "1" * 600_000,
        "0x" + "f" * 600_000,
        "0" + "7" * 600_000,
        "1" + "_" * 600_000,
        "1" * 600_000 + ".5",
    ),
    *(
        "expr(9**9**9)",
        "expr(round(1,-10**9))",
        "expr(sum([[1]*250]*250,[]))",
        "expr([['a'*60000]]*60000)",
        "'{steps:>99999}'",
    ),
    *(
        "expr(('a'*60000).join(['a']*60000))",
        "expr(pow(10**4000,10**4000,10**4000))",
        "'{steps:{steps}{steps}{steps}{steps}}'",
    ),
    *(
        "'expr(" + "(" * 3000 + "1" + ")" * 3000 + ")'",
        "'expr(" + "not " * 3000 + "1)'",
        "expr(int('9'*9000))",
        "expr(1<<10**9)",
    ),
    *(
        "expr('a'.zfill(10**9))",
        "'expr(\"%99999999d\" % 1)'",
        "'{steps[" + "9" * 5000 + "]}'",
        "'" + "${steps}" * 30_000 + "'",
    ),
    *(
        "'" + "\\" * 300_000 + "${a}'",
        "'" + "{steps}" * 30_000 + "'",
        "expr(bin(10**4000))",
        "expr(range(10**9))",
    ),
    *(
        "\"expr(pow(int('v'*60000,32), int('v'*60000,32), int('u'*60000,32)) % 7)\"",
        "expr(pow(10**3400,10**3400,10**3401))",
        '"expr([' + "len(sum([[1]]*20000,[]))," * 380 + '])"',
        '"expr(len([' + "'%10000d'*9000%((1,)*9000)," * 20 + ']))"',
    ),
]
AE_PLACES = {"key": AUTOEXPERIMENT + "bomb: @\n", "option": AUTOEXPERIMENT + "bomb: [1, @]\n"}


@pytest.mark.parametrize("place", AE_PLACES)
@pytest.mark.parametrize("index", range(len(AE_BOMBS)))
def test_autoexperiment_files(index: int, place: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(AE_PLACES[place].replace("@", AE_BOMBS[index]))
    (tmp_path / "job.sbatch").write_text(TEMPLATE)
    shown(tmp_path / "study.yaml")


ALIASES = (
    f"params: {{a: &x [{'1, ' * 990}], b: {'[' * 55}{'*x, ' * 990}{']' * 55}}}\n"
    "stages: {a: {kind: command, command: [x]}}\n"
)


@pytest.mark.parametrize("times", [1, 4])
def test_aliases(times: int, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(ALIASES)
    text = f"name: study\npoint: only\nextends: [{', '.join(['base.yaml'] * times)}]\n"
    (tmp_path / "study.yaml").write_text(text)
    assert "aliases repeat more than" in errors_of(tmp_path / "study.yaml")


def test_large_specs_that_are_extended_often(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"params: {{a: [{'1,' * 400_000}]}}\n")
    text = f"{NATIVE}extends: [{', '.join(['base.yaml'] * 4)}]\n"
    (tmp_path / "study.yaml").write_text(text)
    assert "more than 1000000 values" in errors_of(tmp_path / "study.yaml")


CHAINS = {
    "ae": AUTOEXPERIMENT + "".join(f"c{i}: ${{c{i + 1}}}${{c{i + 1}}}\n" for i in range(60)) + "c60: xxxxx\n",
    "ae lists": AUTOEXPERIMENT
    + "".join(f"c{i}: ['${{c{i + 1}}}', '${{c{i + 1}}}']\n" for i in range(60))
    + "c60: x\n",
    "ae product": AUTOEXPERIMENT + "".join(f"p{i}: [1,2,3,4,5,6,7,8]\n" for i in range(12)),
    "oellm": OELLM.replace("hello", '"${c0}"')
    + "".join(f"c{i}: ${{c{i + 1}}}${{c{i + 1}}}\n" for i in range(50))
    + "c50: x\n",
    "oellm wide": OELLM.replace(
        "base_values: {}", "grids: [{" + ", ".join(f"a{i}: [1,2,3,4]" for i in range(16)) + "}]"
    ),
    "native": NATIVE.replace("hello", '"{{ c0 }}"')
    + "params:\n"
    + "".join(f"  c{i}: '{{{{ c{i + 1} ~ c{i + 1} }}}}'\n" for i in range(60))
    + "  c60: xxxxx\n",
    "native lists": NATIVE.replace("hello", '"{{ c0 }}"')
    + "params:\n"
    + "".join(f"  c{i}: ['{{{{ c{i + 1} }}}}', '{{{{ c{i + 1} }}}}']\n" for i in range(60))
    + "  c60: x\n",
    "native product": NATIVE
    + "sweep: {product: {"
    + ", ".join(f"p{i}: [1,2,3,4,5,6,7,8]" for i in range(12))
    + "}}\n",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name == "ae lists" else ()) for name in CHAINS],
)
def test_values_that_double(name: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(CHAINS[name])
    (tmp_path / "job.sbatch").write_text(TEMPLATE)
    assert "study.yaml:" in shown(tmp_path / "study.yaml")


TRAINING = """\
name: study
cluster: local
point: only
trainer: megatron_lm
megatron: {num_layers: 2, hidden_size: 64, num_attention_heads: 3, seq_length: 128, max_position_embeddings: 128,
  micro_batch_size: 1, global_batch_size: 8, lr: 1e-3, train_iters: 10, mock_data: true, tokenizer_type: NullTokenizer,
  vocab_size: 1000, save_interval: 10, eval_iters: 1}
stages: {pretrain: {kind: train, slurm: {time: 10m}}}
"""
ARGUMENTS = [
    *(
        "hidden_size",
        "num_layers",
        "num_attention_heads",
        "seq_length",
        "vocab_size",
        "global_batch_size",
        "train_iters",
    ),
    *(
        "micro_batch_size",
        "ffn_hidden_size",
        "num_query_groups",
        "save_interval",
        "max_position_embeddings",
        "num_experts",
    ),
    *(
        "kv_channels",
        "make_vocab_size_divisible_by",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "seed",
    ),
]
VALUES = ["1" + "0" * 18, "1" + "0" * 17 + "3", "9" * 400, "-" + "9" * 400, "0", "'{{ 10**1000 }}'", "1e308"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_any_size(name: str, tmp_path: Path) -> None:
    for value in VALUES:
        text, count = re.subn(rf"\b{name}: [^,}}]+", f"{name}: {value}", TRAINING)
        text = text if count else TRAINING.replace("megatron: {", f"megatron: {{{name}: {value}, ")
        (tmp_path / "study.yaml").write_text(text)
        shown(tmp_path / "study.yaml")


@pytest.mark.parametrize("value", [10**18, 10**18 + 9, 10**400, 2**4000, 10**10 + 1, 999_999_000_001])
@pytest.mark.parametrize("wanted", [1, 7, 96, 10**9, 10**17, 10**500, 0, -5])
def test_the_nearest_divisors_of_any_value(value: int, wanted: int) -> None:
    for text in divisors(value, wanted).split(" or "):
        assert value % int(text) == 0


@pytest.mark.parametrize("value", [1, 2, 12, 97, 360, 1000, 4096])
def test_the_nearest_divisors_are_exact(value: int) -> None:
    parts = [part for part in range(1, value + 1) if value % part == 0]
    for wanted in range(1, value + 5):
        below = [part for part in parts if part <= wanted][-1:]
        above = [part for part in parts if part > wanted][:1]
        assert divisors(value, wanted) == " or ".join(map(str, below + above))
    assert math.prod(map(int, divisors(value, value).split(" or "))) == value


ESCAPES = [
    "..",
    "../..",
    "../../..",
    "a/../../../..",
    "./../..",
    "../../../etc",
    "/tmp/../etc",
    "/a/..",
    "/../x",
    "../../../../{name}",
]
INSIDE = [
    "runs/{name}",
    "./{name}",
    "a/../{name}",
    "/scratch/me/{name}",
    "../other/{name}",
    "..a/{name}",
    "a..b/{name}",
]


@pytest.mark.parametrize("directory", ESCAPES)
@pytest.mark.parametrize("form", ["'@'", "['@']", "expr('@')"])
def test_a_run_directory_stays_below_the_root(directory: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT + f"RUN_DIR: {form.replace('@', directory)}\n")
    (tmp_path / "job.sbatch").write_text(TEMPLATE)
    assert "leaves the run root" in errors_of(tmp_path / "study.yaml")


@pytest.mark.parametrize("directory", INSIDE)
def test_other_run_directories(directory: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT + f"RUN_DIR: '{directory}'\n")
    (tmp_path / "job.sbatch").write_text(TEMPLATE)
    assert errors_of(tmp_path / "study.yaml") == ""
