"""YAML documents: YAML 1.2 scalars, repeated keys, merge keys, and the position of every node."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_file, load_yaml_text


def data(text: str) -> Any:
    return load_yaml_text(text, "x.yaml").data


def problem_of(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_yaml_text(text, "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-2.5e+3", -2500.0),
        ("100_000_000", 100_000_000),
        ("1_0.5", 10.5),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("-7", -7),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        # YAML 1.1 reads these otherwise; YAML 1.2 and people read text
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("06:00:00", "06:00:00"),
        ("2024-01-31", "2024-01-31"),
        ("1.2.3", "1.2.3"),
        ("100M", "100M"),
        ("core_v0.16.1", "core_v0.16.1"),
        ("1e", "1e"),
        (".", "."),
        ("+", "+"),
        ("'1e-4'", "1e-4"),
        ('"true"', "true"),
        ('""', ""),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    got = data(f"key: {text}")["key"]
    assert got == value
    assert type(got) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(data("x: .nan")["x"])


@given(st.integers())
def test_whole_numbers_read_back(number: int) -> None:
    assert data(f"x: {number}")["x"] == number
    assert data(f"x: {number:_}")["x"] == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back(number: float) -> None:
    got = data(f"x: {number!r}")["x"]
    assert got == number
    assert isinstance(got, float)


@pytest.mark.slow
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Co"))))
def test_quoted_text_stays_text(text: str) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    assume(
        yaml.safe_load(quoted) == text
    )  # characters that YAML folds or refuses (byte order marks, line separators)
    assert data(f"x: {quoted}")["x"] == text


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abcxyz 0123456789.:-_e"),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdef", min_size=1), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.text("abcdef", min_size=1), values, min_size=1))
def test_any_document_reads_back(content: dict[str, Any]) -> None:
    document = load_yaml_text(json.dumps(content), "x.yaml")
    assert document.data == content
    for path, (line, column) in document.positions.items():
        assert line >= 1
        assert column >= 1, path


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        document = load_yaml_text(text, "x.yaml")
    except SpecError as error:
        problems = error.problems
    else:
        problems = (document.problem((), "read"),)
    assert problems
    assert all(problem.file == "x.yaml" and problem.message for problem in problems)


def test_positions_of_keys_and_items() -> None:
    document = load_yaml_text("a:\n  b: [1, 2]\n  c:\n    - d: 3\n", "x.yaml")
    places = {
        path: document.positions[path] for path in [("a",), ("a", "b"), ("a", "b", 1), ("a", "c", 0, "d")]
    }
    assert places == {("a",): (1, 1), ("a", "b"): (2, 3), ("a", "b", 1): (2, 10), ("a", "c", 0, "d"): (4, 7)}


def test_a_problem_without_a_place_of_its_own_is_shown_at_the_nearest() -> None:
    document = load_yaml_text("a:\n  b: 1\n", "x.yaml")
    assert str(document.problem(("a", "b", "c", 0), "wrong", "hint")) == "x.yaml:2:3: wrong (hint)"


def test_all_repeated_keys_are_reported() -> None:
    assert problem_of("a: 1\nb: {c: 1, c: 2}\na: 3\n").splitlines() == [
        "x.yaml:2:11: key 'c' is given twice (remove one)",
        "x.yaml:3:1: key 'a' is given twice (remove one)",
    ]


def test_merge_keys() -> None:
    document = load_yaml_text(
        "base: &base {lr: 1e-3, size: S}\n"
        "other: &other {size: M, seed: 1}\n"
        "one:\n  <<: *base\n  lr: 2e-3\n"
        "two:\n  <<: [*base, *other]\n"
        "'<<': text\n",
        "x.yaml",
    )
    assert document.data["one"] == {"lr": 2e-3, "size": "S"}
    assert document.data["two"] == {"lr": 1e-3, "size": "S", "seed": 1}
    assert document.data["<<"] == "text"
    assert document.positions["one", "lr"] == (5, 3)


def test_a_merge_key_without_a_mapping() -> None:
    assert problem_of("a:\n  <<: 3\n") == "x.yaml:2:7: '<<' takes a mapping"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "x.yaml:1:1: the file is empty"),
        ("# nothing\n", "x.yaml:1:1: the file is empty"),
        ("a: 1\n\tb: 2\n", "(indent with spaces)"),
        ("a:\n  b: 1\n\tc: 2\n", "(indent with spaces)"),
        ("a:\n\t- 1\n", "(indent with spaces)"),
        ("a: b: c\n", "(quote values that contain ': ')"),
        ("lr: {{ lr }}\n", '(quote expressions: "{{ … }}")'),
        ("a: 1\nb: [1, 2\nc: 3\n", "x.yaml:2:4: not valid YAML: while parsing a flow sequence"),
        ("a: {b: [1, 2]\n", "(close the bracket, and separate the items with commas)"),
        (
            "a: 1\np: {{ x }}_{{ y }}\nb: 1\n",
            "x.yaml:2:11: not valid YAML: while parsing a block mapping did not",
        ),
        ("p: {{ x }}_{{ y }}\nb: 1\n", '(quote expressions: "{{ … }}")'),
        ("p: {{ x['a'] }}\n", '(quote expressions: "{{ … }}")'),
        (
            "a: 1\nb:2\nc: 3\n",
            "x.yaml:2:1: not valid YAML: while scanning a simple key could not find expected ':'",
        ),
        ("a: 1\nb:2\nc: 3\n", "(write key: value, with a space after the colon)"),
        (
            "a: 1\n  b: 2\n",
            "x.yaml:2:4: not valid YAML: mapping values are not allowed in this context (indent the",
        ),
        *(
            (text, "the line above must have ': ' (colon, space) after its key, or end with ':' if it")
            for text in ("s\n  b: 2\n", "num_layers 2\nb: 2\n", "num_layers:2\nb: 2\n")
        ),
        (
            "s:\n  a: 1\n b: 2\n",
            "x.yaml:3:2: not valid YAML: while parsing a block mapping did not find expected key (indent",
        ),
        (
            "a: 1\nb: 'x\nc: 3\n",
            "x.yaml:2:4: not valid YAML: while scanning a quoted scalar found unexpected end of",
        ),
        ("a: 'it's'\n", "and quote a value as a whole)"),
        (
            "a: @x\n",
            "x.yaml:1:4: not valid YAML: while scanning for the next token found character that cannot start any",
        ),
        ("a: 1\n---\nb: 2\n", "x.yaml:2:1: not valid YAML"),
        ("a: *nothing\n", "x.yaml:1:4: not valid YAML"),
        ("? [a, b]\n: 1\n", "x.yaml:1:3: a key must be a plain word"),
        ("a: \0\n", "not valid YAML"),
    ],
)
def test_what_is_not_yaml(text: str, told: str) -> None:
    assert told in problem_of(text)


def test_files(tmp_path: Any) -> None:
    missing = tmp_path / "no.yaml"
    with pytest.raises(SpecError, match="no such file"):
        load_yaml_file(missing)
    with pytest.raises(SpecError, match="cannot be read"):
        load_yaml_file(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(SpecError, match=r"latin\.yaml: cannot be read"):
        load_yaml_file(tmp_path / "latin.yaml")


def test_a_withheld_value_that_is_part_of_a_word_stays() -> None:
    document = load_yaml_text("a: 1", "f.yaml")
    document.withhold("PARTITION", "gpu")
    document.withhold("TOKEN", "secret-value")
    text = document.problem((), "gpus_per_node: 4, partition gpu, m_gpu1, xsecret-valuex").message
    assert (
        text == "gpus_per_node: 4, partition ${oc.env:PARTITION}, m_${oc.env:PARTITION}1, x${oc.env:TOKEN}x"
    )
