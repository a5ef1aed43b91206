"""Digits that Python cannot read or print as a number are refused with their position in all numbers of a spec."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.plan.sweep_plan import check_document, check_sweep
from airflow_megatron.spec.dialects.oellm.conditions import _with_groups
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.quantities import list_index
from airflow_megatron.spec.documents.yaml_document import load_yaml_text, plain_scalar
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.native.overrides import overridden
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

MANY = "9" * 5000
"""Python reads and prints at most 4,300 digits."""
ODD = ("²", "1²", "①", "५²")
"""``str.isdigit`` takes them, ``int`` does not."""

OELLM = """\
job: {name: study, base_output_dir: "out/${.name}"}
backend: {class_name: NullBackend, command: [echo, hello]}
slurm: {sbatch: {nodes: 1, account: abc, time: "00:10:00"}, env: {}}
sweep: {base_values: {}}
"""


def problems(text: str, folder: Path) -> str:
    """Return the errors of a spec; any exception except ``SpecError`` fails the test."""
    try:
        sweep = load_sweep_text(text, str(folder / "study.yaml"))
        check_document(sweep)
        check_sweep(sweep, load_cluster("local"))
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "text", ["0x" + "f" * 5000, "0o" + "7" * 5000, "0b" + "1" * 15_000, MANY, f"-{MANY}"]
)
def test_a_number_of_too_many_digits(text: str) -> None:
    with pytest.raises(SpecError, match=r"x.yaml:1:4: the number is malformed or too long"):
        load_yaml_text(f"a: {text}\n", "x.yaml")


@pytest.mark.parametrize("text", ["0x" + "f" * 3500, "0b" + "1" * 14_000, "9" * 4200])
def test_a_number_that_can_be_printed(text: str) -> None:
    assert str(plain_scalar(text)).isdigit()


@pytest.mark.parametrize("key", ["time", "nodes", "cpus_per_task", "gpus_per_node", "gres", "signal"])
@pytest.mark.parametrize("digits", [*ODD, MANY])
def test_options_of_sbatch(key: str, digits: str, tmp_path: Path) -> None:
    value = {"gres": f"gpu:{digits}", "signal": f"TERM@{digits}"}.get(key, digits)
    sbatch = {"nodes": "1", "account": "abc", "time": "00:10:00", key: value}
    listed = ", ".join(f'{name}: "{text}"' for name, text in sbatch.items())
    found = problems(re.sub(r"sbatch: \{[^}]*\}", f"sbatch: {{{listed}}}", OELLM), tmp_path)
    if key not in ("gres", "signal") or digits == MANY:
        assert "study.yaml:" in found
        assert f"slurm.sbatch.{key}" in found


@pytest.mark.parametrize("word", [*ODD, MANY, f"-{MANY}", "--1", "-²", "٣"])
@pytest.mark.parametrize(
    "place",
    [
        OELLM.replace("hello", '"${backend.command.@}"'),
        OELLM.replace("hello", '"${oc.select:backend.command.@,x}"'),
        OELLM.replace("base_values: {}", 'base_values: {"backend.command.@": x}'),
        OELLM.replace("base_values: {}", 'type: product, groups: [{params: {"backend.command.@": [1, 2]}}]'),
        OELLM.replace(
            "base_values: {}",
            'type: product, filter: "${backend.command.@}", groups: [{params: {"job.name": [a, b]}}]',
        ),
    ],
    ids=["reference", "select", "base value", "swept", "filter"],
)
def test_items_of_lists(place: str, word: str, tmp_path: Path) -> None:
    found = problems(place.replace("@", word), tmp_path)
    assert ("study.yaml:" in found) == ("oc.select" not in place)


@pytest.mark.parametrize("word", [*ODD, MANY, "٣"])
def test_items_of_lists_that_are_set(word: str) -> None:
    document = load_yaml_text("tags: [a, b]\n", "x.yaml")
    with pytest.raises(SpecError, match="is not an item of tags"):
        overridden(document, [f"tags.{word}=c"])


@pytest.mark.parametrize("number", [*ODD, MANY, "٣"])
def test_groups_of_a_pattern(number: str) -> None:
    assert _with_groups("(a)", {"x": number, "word": "1"}) == "(?P<word>a)"


@pytest.mark.parametrize(
    ("word", "length", "index"),
    [
        ("0", 2, 0),
        ("1", 2, 1),
        ("2", 2, None),
        ("-1", 2, None),
        ("", 2, None),
        ("a", 2, None),
        ("01", 2, 1),
        *((word, 2, None) for word in (*ODD, MANY, "٣", "+1", "1_0", " 1")),
    ],
)
def test_index(word: str, length: int, index: Any) -> None:
    assert list_index(word, length) == index


@pytest.mark.parametrize(
    ("word", "index"), [("-1", -1), ("-2", -2), ("-3", None), ("--1", None), ("-", None), (f"-{MANY}", None)]
)
def test_index_from_the_end(word: str, index: int | None) -> None:
    assert list_index(word, 2, from_end=True) == index
