"""Loading spec files of every language."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from airflow_megatron.spec.dialects import dialect_sweep
from airflow_megatron.spec.extension import extended
from airflow_megatron.spec.native_sweep import NativeSweep
from airflow_megatron.spec.overrides import overridden
from airflow_megatron.spec.schema import SweepSpecSection, validate
from airflow_megatron.spec.sidecar import is_sidecar, refuse_sidecar
from airflow_megatron.spec.yaml_document import load_yaml_file, load_yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from airflow_megatron.spec.sweep import Sweep
    from airflow_megatron.spec.yaml_document import YamlDocument


def load_sweep(path: Path | str, settings: Iterable[str] = ()) -> Sweep:
    """Load and check a sweep spec file.

    :param settings: ``key=value`` each, for values of the file; see :mod:`airflow_megatron.spec.overrides`
    :raises SpecError: with every problem found
    """
    return _sweep(load_yaml_file(path), settings)


def load_sweep_text(text: str, file: str, sources: Mapping[str, str] | None = None) -> Sweep:
    """Load and check a sweep spec given as text.

    :param file: names it in messages, and its folder is what other files are relative to
    :param sources: path → content of files that it draws on, instead of what they hold now
    """
    document = load_yaml_text(text, file)
    document.sources.update(sources or {})
    return _sweep(document)


def _sweep(document: YamlDocument, settings: Iterable[str] = ()) -> Sweep:
    document, settings = extended(document), list(settings)
    sweep = dialect_sweep(document, settings)
    if sweep is not None:
        return sweep
    refuse_sidecar(document)
    document = overridden(document, settings)
    return NativeSweep(validate(SweepSpecSection, document), document)


def spec_files(directory: Path) -> list[Path]:
    """Return the spec files in a folder, sorted; the sidecars of others are none."""
    files = itertools.chain(directory.glob("*.yaml"), directory.glob("*.yml"))
    return sorted(file for file in files if not is_sidecar(file))
