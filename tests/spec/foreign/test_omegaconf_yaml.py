"""Scalars as OmegaConf reads them, and problems as for all YAML files."""

from __future__ import annotations

import pytest

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.foreign.omegaconf_yaml import load_omegaconf_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [("on", True), ("010", 8), ("1e-2", 0.01), ("1:30", 90), ("2024-01-01", "2024-01-01"), ("~", None)],
)
def test_scalars(text: str, value: object) -> None:
    document, _ = load_omegaconf_yaml(f"key: {text}", "x.yaml")
    assert document.data == {"key": value}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "[" * 70 + "]" * 70, id="depth"),
        pytest.param("a: " + "[" * 5000 + "]" * 5000, id="great depth"),
        pytest.param("a: [1, 2\nb: 3", id="bracket"),
        pytest.param("a:\n\tb: 1", id="tab"),
        pytest.param("a: \x07", id="control character"),
        pytest.param("a: \ud800", id="surrogate"),
        pytest.param("a: b: c", id="colon"),
        pytest.param("", id="empty"),
    ],
)
def test_problems_are_those_of_every_yaml_file(text: str) -> None:
    with pytest.raises(SpecError) as ours:
        load_yaml_text(text, "x.yaml")
    with pytest.raises(SpecError) as own:
        load_omegaconf_yaml(text, "x.yaml")
    assert str(own.value) == str(ours.value)
