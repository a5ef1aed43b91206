"""Sweep specs in the languages of other tools, recognised by their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_megatron.spec.dialects import autoexperiment, oellm
from airflow_megatron.spec.overrides import overridden
from airflow_megatron.spec.sidecar import sidecar_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.spec.sidecar import Sidecar
    from airflow_megatron.spec.sweep import Sweep
    from airflow_megatron.spec.yaml_document import YamlDocument


class _Dialect(Protocol):
    """A module that reads another tool's files."""

    def recognises(self, document: YamlDocument) -> bool: ...
    def load(self, document: YamlDocument, sidecar: Sidecar) -> Sweep: ...


_DIALECTS: tuple[_Dialect, ...] = (autoexperiment, oellm)


def dialect_sweep(document: YamlDocument, settings: Iterable[str] = ()) -> Sweep | None:
    """Return the sweep that a document in another tool's language describes, None for a native one.

    :param settings: ``key=value`` each, for values of the file or of its sidecar
    :raises SpecError: when the document is of a known language, and wrong; when its sidecar is wrong
    """
    dialect = next((dialect for dialect in _DIALECTS if dialect.recognises(document)), None)
    if dialect is None:
        return None
    sidecar, of_file = sidecar_of(document, settings)
    return dialect.load(overridden(document, of_file), sidecar)
