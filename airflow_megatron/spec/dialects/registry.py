"""The dialects: which one a document is written in, and how its sweep is loaded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol, cast

from airflow_megatron.spec.dialects.recognition import is_autoexperiment, is_oellm
from airflow_megatron.spec.foreign.sidecar import sidecar_of
from airflow_megatron.spec.native.overrides import overridden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_megatron.spec.documents.yaml_document import YamlDocument
    from airflow_megatron.spec.foreign.sidecar import Sidecar
    from airflow_megatron.spec.model.sweep import Sweep


class _Dialect(Protocol):
    """A module that reads another tool's files."""

    def load(self, document: YamlDocument, sidecar: Sidecar) -> Sweep: ...


_DIALECTS: Final[dict[str, Callable[[YamlDocument], bool]]] = {
    "autoexperiment": is_autoexperiment,
    "oellm": is_oellm,
}
"""Package → function that recognises its documents; its module ``dialect`` is imported only for these."""


def import_all() -> None:
    """Import every dialect, for processes that each read one document."""
    for name in _DIALECTS:
        _imported(name)


def _imported(name: str) -> _Dialect:
    return cast("_Dialect", importlib.import_module(f"{__package__}.{name}.dialect"))


def dialect_sweep(document: YamlDocument, settings: Iterable[str] = ()) -> Sweep | None:
    """Return the sweep of a document in another tool's format; None for a native document.

    :param settings: ``key=value`` each, for values of the file or of its sidecar
    :raises SpecError: if the document is of a known language, and wrong; if its sidecar is invalid
    """
    name = next((name for name, recognises in _DIALECTS.items() if recognises(document)), None)
    if name is None:
        return None
    dialect = _imported(name)
    sidecar, of_file = sidecar_of(document, settings)
    return dialect.load(overridden(document, of_file), sidecar)
