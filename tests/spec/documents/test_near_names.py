"""Suggestions for misspelt names."""

from __future__ import annotations

from airflow_megatron.spec.documents.errors import did_you_mean, near_names, suggestion

KNOWN = ("limit", "limits", "num_fewshot", 5)


def test_near_names() -> None:
    assert near_names("limit", KNOWN) == ["limit", "limits"]
    assert near_names("limt", KNOWN, limit=1) == ["limit"]
    assert near_names("limt", KNOWN, alike=0.85) == ["limit"] != near_names("limt", KNOWN, alike=0.9)


def test_hints_for_near_names() -> None:
    assert did_you_mean("limt", KNOWN) == "did you mean 'limit' or 'limits'?"
    assert did_you_mean("batch", KNOWN) == suggestion([]) == ""
    assert suggestion(["a.b"]) == "did you mean a.b?"
