from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.table_writer import make_table, write_table
from airflow_megatron.megatron.arguments.tables import Argument, ArgumentError, argument_table, known_releases

RELEASE = "core_v0.16.1"
CACHING = "inference_dynamic_batching_prefix_caching"
YARN = "yarn_correction_range_round_to_int"


def parser_of(release: str) -> argparse.ArgumentParser:
    """An argparse parser with the release's arguments, which checks the output of ``to_argv``."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    types: dict[str | None, Any] = {"int": int, "float": float, "bool": bool}
    for argument in argument_table(release):
        options: dict[str, Any] = {"dest": argument.dest, "default": argument.default}
        if argument.action == "Store":
            options |= {"type": types.get(argument.type, str), "nargs": argument.nargs}
            if argument.choices and argument.type in ("int", "str", None):
                options["choices"] = argument.choices
            parser.add_argument(*argument.flags, **options)
        elif argument.action == "BooleanOptional":
            parser.add_argument(argument.flags[0], action=argparse.BooleanOptionalAction, **options)
        else:
            action = {"StoreTrue": "store_true", "StoreFalse": "store_false"}[argument.action]
            parser.add_argument(*argument.flags, action=action, **options)
    return parser


PARSERS = {release: parser_of(release) for release in known_releases()}


def read_back(params: dict[str, object], release: str = RELEASE) -> argparse.Namespace:
    return PARSERS[release].parse_args(to_argv(params, release))


def test_releases() -> None:
    assert known_releases() == (
        "core_v0.12.0", "core_v0.13.1", "core_v0.14.0", "core_v0.15.3",
        "core_v0.16.1", "core_v0.17.1", "core_v0.18.0", "core_v0.18.2", "core_v0.19.0",
    )  # fmt: skip
    sizes = [len(argument_table(release)) for release in known_releases()]
    assert sizes == [455, 501, 513, 565, 651, 704, 750, 750, 807]


def test_lookup_by_dest_and_by_flag() -> None:
    table = argument_table(RELEASE)
    for name in ("num_layers", "num-layers", "--num-layers"):
        argument = table.get(name)
        assert argument is not None
        assert argument.dest == "num_layers"
    bias = table.get("disable_bias_linear")
    assert bias is table.get("add_bias_linear") is table.get("--disable-bias-linear")
    assert table.get("num_layer") is None
    assert table.nearest("num_layer")[0] == "num_layers"


def test_a_release_has_its_own_arguments() -> None:
    assert argument_table("core_v0.12.0").get("encoder_num_layers") is not None
    assert argument_table("core_v0.19.0").get("cuda_graph_modules") is not None
    assert argument_table("core_v0.12.0").get("cuda_graph_modules") is None


def test_unknown_release() -> None:
    with pytest.raises(ArgumentError, match=r"core_v0\.19\.0") as caught:
        argument_table("core_v0.16.0")
    assert caught.value.nearest == ("core_v0.16.1",)


def test_command_line() -> None:
    params = {
        "lr": 1e-05,
        "override_opt_param_scheduler": True,
        "num_layers": 4,
        "bf16": True,
        "data_path": ["0.5", "/data/a b", 0.5, "/data/c"],
        "train_iters": 1000.0,
        "save": None,
        "add_bias_linear": False,
        "add_position_embedding": True,
        "no_rope_fusion": False,
        "min_lr": -0.00001,
    }
    argv = to_argv(params, RELEASE)
    assert argv == to_argv(dict(reversed(params.items())), RELEASE)
    assert argv[argv.index("--lr") : argv.index("--lr") + 2] == ["--lr", "1e-05"]
    assert "--override-opt_param-scheduler" in argv
    assert "--disable-bias-linear" in argv
    assert "--no-position-embedding" not in argv
    assert "--no-rope-fusion" not in argv
    assert "--save" not in argv
    args = read_back(params)
    assert (args.lr, args.min_lr, args.train_iters) == (1e-05, -1e-05, 1000)
    assert args.data_path == ["0.5", "/data/a b", "0.5", "/data/c"]
    assert not args.add_bias_linear


@pytest.mark.parametrize(
    ("release", "params", "tokens"),
    [
        ("core_v0.19.0", {"rl_partial_rollouts": True}, ["--rl-partial-rollouts"]),
        ("core_v0.19.0", {"rl_partial_rollouts": False}, ["--no-rl-partial-rollouts"]),
        ("core_v0.19.0", {CACHING: False}, ["--no-inference-dynamic-batching-prefix-caching"]),
        ("core_v0.19.0", {f"no_{CACHING}": True}, ["--no-inference-dynamic-batching-prefix-caching"]),
        ("core_v0.19.0", {f"no_{CACHING}": False}, ["--inference-dynamic-batching-prefix-caching"]),
        ("core_v0.19.0", {YARN: True}, ["--yarn-correction-range-round-to-int"]),
        ("core_v0.19.0", {YARN: False}, ["--no-yarn-correction-range-round-to-int"]),
        ("core_v0.16.1", {"ckpt_fully_parallel_save": False}, ["--no-ckpt-fully-parallel-save"]),
        ("core_v0.16.1", {"ckpt_fully_parallel_save": True}, []),
        ("core_v0.16.1", {"exit_signal": "SIGUSR1"}, ["--exit-signal", "SIGUSR1"]),
        ("core_v0.16.1", {"attention_backend": "unfused"}, ["--attention-backend", "unfused"]),
        ("core_v0.16.1", {"moe_layer_freq": [0, 1, 1]}, ["--moe-layer-freq", "[0,1,1]"]),
        ("core_v0.16.1", {"moe_layer_freq": "([0]+[1]*23)"}, ["--moe-layer-freq", "([0]+[1]*23)"]),
        ("core_v0.16.1", {"window_size": [512, 0]}, ["--window-size", "(512,0)"]),
        ("core_v0.16.1", {"rampup_batch_size": [16, 8, 1000]}, ["--rampup-batch-size", "16", "8", "1000"]),
        ("core_v0.16.1", {"data_path": "/one"}, ["--data-path", "/one"]),
        ("core_v0.16.1", {"save": "-odd"}, ["--save=-odd"]),
        ("core_v0.16.1", {"train_iters": "100"}, ["--train-iters", "100"]),
        ("core_v0.12.0", {"onnx_safe": False}, ["--onnx-safe="]),
    ],
)  # fmt: skip
def test_special_arguments(release: str, params: dict[str, object], tokens: list[str]) -> None:
    assert to_argv(params, release) == tokens
    PARSERS[release].parse_args(tokens)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"num_layer": 3}, ["num_layer", RELEASE, "num_layers"]),
        ({"num_layers": 1.5}, ["num_layers", "an integer", "1.5"]),
        ({"num_layers": True}, ["an integer", "True"]),
        ({"num_layers": [1]}, ["an integer"]),
        ({"lr": "fast"}, ["lr", "a number", "fast"]),
        ({"lr": float("nan")}, ["a number"]),
        ({"lr": 10**400}, ["lr", "a number below 1.8e+308", "not 1000"]),
        ({"num_layers": 10**400}, ["num_layers", "an integer below 1.8e+308", "not 1000"]),
        ({"num_layers": -(10**400)}, ["an integer below 1.8e+308"]),
        ({"num_layers": str(10**400)}, ["an integer below 1.8e+308"]),
        ({"bf16": 1}, ["bf16", "true or false"]),
        ({"bf16": "true"}, ["bf16", "true or false"]),
        ({"save": True}, ["save", "text"]),
        ({"save": "a\0b"}, ["save"]),
        ({"lr_decay_style": "wsd"}, ["lr_decay_style", "constant", "did you mean WSD"]),
        ({"rampup_batch_size": [1, 2]}, ["3 values, not 2"]),
        ({"rampup_batch_size": "4 4 100"}, ["3 values, not 1 (write [4, 4, 100])"]),
        ({"split": [98, 1.5, 1]}, ["text", "(write '98,1.5,1')"]),
        ({"iterations_to_skip": []}, ["at least one"]),
        ({"data_path": ["-x"]}, ["-x"]),
        ({"disable_bias_linear": True, "add_bias_linear": False}, ["add_bias_linear", "disable_bias_linear"]),
    ],
)
def test_refusals(params: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        to_argv(params, RELEASE)
    assert caught.value.name in params
    assert caught.value.release == RELEASE
    for word in words:
        assert word in str(caught.value)


TEXT = st.characters(exclude_characters="\0", exclude_categories=("Cs",))


def value_of(argument: Argument) -> st.SearchStrategy[object]:
    """Values that the argument must accept."""
    if argument.is_flag or argument.type == "bool":
        return st.booleans()
    if argument.choices is not None:
        one: st.SearchStrategy[Any] = st.sampled_from(argument.choices)
    elif argument.type == "int":
        one = st.integers(min_value=-(10**12), max_value=10**12)
    elif argument.type == "float":
        one = st.floats(allow_nan=False)
    else:
        one = st.text(TEXT, min_size=1)
    if not argument.is_list:
        return one
    if argument.type not in ("int", "float"):
        one = one.filter(lambda text: not str(text).startswith("-"))
    size = argument.nargs if isinstance(argument.nargs, int) else None
    return st.lists(one, min_size=size or 1, max_size=size or 3)


PLAIN_TYPES = ("int", "float", "str", "bool", None)


@pytest.mark.slow
@given(st.sampled_from(known_releases()), st.data())
def test_argparse_reads_the_same_values_back(release: str, data: st.DataObject) -> None:
    table = argument_table(release)
    plain = [argument for argument in table if argument.type in PLAIN_TYPES]
    chosen = data.draw(st.lists(st.sampled_from(plain), unique_by=lambda argument: argument.dest, max_size=6))
    params = {argument.dest: data.draw(value_of(argument)) for argument in chosen}
    args = PARSERS[release].parse_args(to_argv(params, release))
    for argument in chosen:
        wanted = params[argument.dest]
        setters = [other for other in table if other.dest == argument.dest]
        if argument.is_flag and not any(
            other.action in ("BooleanOptional", "StoreTrue" if wanted else "StoreFalse") for other in setters
        ):
            # The command line does not set it, so the value must be the default.
            assert getattr(args, argument.dest) == argument.default
        else:
            assert getattr(args, argument.dest) == wanted


def test_values_that_are_equal_are_each_written_as_themselves() -> None:
    assert [to_argv({"lr": value}, RELEASE) for value in (0.0, -0.0, 0, 1, 1.0)] == [
        ["--lr", "0.0"],
        ["--lr", "-0.0"],
        ["--lr", "0"],
        ["--lr", "1"],
        ["--lr", "1.0"],
    ]
    assert to_argv({"num_layers": 1}, RELEASE) == ["--num-layers", "1"]
    with pytest.raises(ArgumentError, match="num_layers"):
        to_argv({"num_layers": True}, RELEASE)


def test_a_line_like_the_last_is_written_with_its_own_values() -> None:
    """Values that are the same objects as in the line before are not looked at again."""
    release = "core_v0.16.1"
    first = {"save": "/a", "lr": 1e-3, "add_bias_linear": False, "num_layers": 4}
    changes: tuple[dict[str, object], ...] = (
        {"save": "/b"},
        {"save": "-b"},
        {"lr": 2e-3, "num_layers": 8},
        {"add_bias_linear": True},
        {"num_layers": None},
        {},
    )
    for change in changes:
        params = first | change
        assert to_argv(first, release) == [
            *("--num-layers", "4", "--disable-bias-linear", "--lr", "0.001", "--save", "/a")
        ]
        reordered = dict(reversed(params.items()))  # other names have precedence, so it is unknown
        assert to_argv(params, release) == to_argv(reordered, release)
    for wrong in ({"num_layers": "x"}, {"add_bias_linear": "yes"}, {"save": "/a\0"}):
        to_argv(first, release)
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            to_argv(first | wrong, release)
    with pytest.raises(ArgumentError, match="which save sets already"):
        to_argv(first | {"--save": "/b"}, release)


def test_the_table_is_made_from_dumps(tmp_path: Any) -> None:
    argument = {
        "flags": ["--backend"], "dest": "backend", "group": "g", "action": "Store", "type": "f", "nargs": None,
        "choices": ["<Kind.a: 1>", "<Kind.b: 2>"], "default": "<Kind.b: 2>", "required": False,
    }  # fmt: skip
    newer = {**argument, "choices": ["<Kind.a: 1>"], "default": "<Kind.a: 1>"}
    dumps = [
        {"release": "core_v0.10.0", "arguments": [argument, newer]},
        {"release": "core_v0.9.0", "arguments": [argument]},
    ]
    write_table(make_table(dumps), tmp_path / "table.json")
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["releases"] == {"core_v0.9.0": [0], "core_v0.10.0": [0, 1]}
    assert [row[6:8] for row in table["arguments"]] == [[["a", "b"], "b"], [["a"], "a"]]
