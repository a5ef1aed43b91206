"""Argument tables from checkouts."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.megatron.arguments.checkout import CheckoutError, checkout_table, dump_checkout
from airflow_megatron.megatron.arguments.table_writer import make_table, with_release
from airflow_megatron.megatron.arguments.tables import TABLE_FILE

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS = """
import enum
import torch
import einops.layers
import package_that_is_missing.part as part
from typing import override
try:
    import transformer_engine
    HAVE_ENGINE = True
except ImportError:
    HAVE_ENGINE = False


class Kind(enum.Enum):
    small = 1
    large = 2


class Block(torch.nn.Module):
    @override
    def forward(self, x: torch.Tensor | None):
        return x


@torch.jit.script
def fused(x):
    return x


@torch.no_grad()
def quiet(x):
    return x


def add_megatron_arguments(parser):
    group = parser.add_argument_group(title="network size")
    group.add_argument("--num-layers", "--layers", type=int, required=True)
    group.add_argument("--bf16", action="store_true")
    group.add_argument("--kind", type=Kind.__getitem__, choices=list(Kind), default=Kind.small)
    group.add_argument("--engine", default="yes" if HAVE_ENGINE else "no")
    group.add_argument("--quiet", default=fused is not None and quiet(3) == 3, type=bool)
    return parser
"""


def make_checkout(folder: Path, text: str) -> Path:
    """Write a checkout with only an argument parser."""
    module = folder / "our-fork" / "megatron" / "training" / "arguments.py"
    module.parent.mkdir(parents=True)
    module.write_text(text)
    return folder / "our-fork"


@pytest.mark.slow
def test_parser_is_built_without_what_it_imports(tmp_path: Path) -> None:
    table = checkout_table(make_checkout(tmp_path, ARGUMENTS))
    assert table.release == "our-fork"
    layers, bf16, kind, engine, quiet = table
    assert layers.flags == ("--num-layers", "--layers")
    assert (layers.type, layers.required, layers.group) == ("int", True, "network size")
    assert (bf16.action, bf16.default) == ("StoreTrue", False)
    assert (kind.choices, kind.default) == (("small", "large"), "small")
    assert engine.default == "no"
    assert quiet.default is True


PROGRAM = """
import torch
from megatron.training import pretrain
from megatron.training.arguments import add_megatron_arguments
print("starting")
try:
    import modelopt
    optional = True
except ImportError:
    optional = False


def add(parser):
    parser.add_argument("--ours", type=int, default=3)
    if optional:
        parser.add_argument("--quantize", action="store_true")
    return parser


if __name__ == "__main__":
    pretrain(None, extra_args_provider=add, args_defaults={"kind": "large"})
"""


@pytest.mark.slow
def test_a_program_is_run_for_what_it_adds(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, ARGUMENTS)
    (checkout / "megatron/training/__init__.py").write_text(
        "def pretrain(*args, **kwargs): raise SystemExit(7)"
    )
    (checkout / "pretrain_gpt.py").write_text(PROGRAM)
    table = checkout_table(checkout)
    assert (table.program_defaults, [argument.dest for argument in table][5:]) == (
        {"kind": "large"},
        ["ours"],
    )
    assert table.package_of("--quantize") == "modelopt"
    assert table.with_packages(frozenset({"modelopt"})).get("quantize") is not None


@pytest.mark.slow
def test_a_program_that_does_not_run_is_noted(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path, ARGUMENTS)
    (checkout / "megatron/training/__init__.py").write_text("")
    (checkout / "pretrain_gpt.py").write_text("print('nothing to do')")
    dump = dump_checkout(checkout)
    assert dump["programs"] == {}
    assert "pretrain_gpt.py reads no arguments" in dump["notes"][0]


@pytest.mark.slow
def test_release_can_be_named(tmp_path: Path) -> None:
    dump = dump_checkout(make_checkout(tmp_path, ARGUMENTS), "fork_v1.0")
    assert list(make_table([dump])["releases"]) == ["fork_v1.0"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["megatron/training", "megatron"])
def test_older_releases_build_their_parser_where_they_parse(tmp_path: Path, place: str) -> None:
    """core_v0.11 and its forks have no ``add_megatron_arguments``; before core_v0.7 the module was another one."""
    module = tmp_path / place / "arguments.py"
    module.parent.mkdir(parents=True)
    module.write_text("""
import argparse
from importlib.metadata import version
import transformer_engine

ENGINE = version("transformer-engine")


def parse_args(extra_args_provider=None, ignore_unknown_args=False):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--num-layers", type=int, default=len(ENGINE) and 2)
    args, _ = parser.parse_known_args() if ignore_unknown_args else (parser.parse_args(), None)
    args.rank = 0
    return args
""")
    (argument,) = checkout_table(tmp_path)
    assert (argument.flags, argument.type, argument.default) == (("--num-layers",), "int", 2)


@pytest.mark.slow
def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="not a checkout of a trainer"):
        dump_checkout(tmp_path)
    with pytest.raises(CheckoutError, match="does not build: NameError"):
        dump_checkout(make_checkout(tmp_path, "undefined"))


@pytest.mark.slow
def test_a_release_is_added_to_a_table() -> None:
    table = json.loads(TABLE_FILE.read_text())
    dumps = [_dump_of(table, release) for release in table["releases"]]
    older, newer = [dump for dump in dumps if dump["release"] in ("core_v0.17.1", "core_v0.19.0")]
    made = with_release(make_table([newer]), older)
    assert list(made["releases"]) == ["core_v0.17.1", "core_v0.19.0"]
    assert (
        made["arguments"][: len(newer["arguments"])]
        == make_table([newer])["arguments"][: len(newer["arguments"])]
    )
    for dump in (older, newer):
        again, alone = _dump_of(made, dump["release"]), _dump_of(make_table([dump]), dump["release"])
        assert again == alone == dump
    assert with_release(made, older) == made


def _dump_of(table: dict[str, Any], release: str) -> dict[str, Any]:
    """Return the dump from which a release's part of a table was made."""

    def of(indices: list[int]) -> list[dict[str, Any]]:
        rows = [dict(zip(table["columns"], table["arguments"][index], strict=True)) for index in indices]
        for row in rows:
            if row["dest"] == "exit_signal" and row["choices"]:
                row["choices"] = [signal.Signals[name].value for name in row["choices"]]
        return rows

    programs = {
        script: {
            "defaults": own[release]["defaults"],
            "adds": of(own[release]["adds"]),
            "packages": {package: of(more) for package, more in own[release]["packages"].items()},
        }
        for script, own in table["programs"].items()
        if release in own
    }
    return {"release": release, "arguments": of(table["releases"][release]), "programs": programs}
