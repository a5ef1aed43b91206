"""Sweep specs in the languages of other tools, recognised by their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.spec.dialects import autoexperiment, oellm

if TYPE_CHECKING:
    from airflow_megatron.spec.sweep import Sweep
    from airflow_megatron.spec.yaml_document import YamlDocument


def dialect_sweep(document: YamlDocument) -> Sweep | None:
    """Return the sweep that a document in another tool's language describes, None for a native one.

    :raises SpecError: when the document is of a known language, and wrong
    """
    if autoexperiment.recognises(document):
        return autoexperiment.load(document)
    if oellm.recognises(document):
        return oellm.load(document)
    return None
