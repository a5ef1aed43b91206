"""Loading spec files of every language."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.dialects.registry import dialect_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_file, load_yaml_text
from airflow_megatron.spec.expressions.bounds import begin_spec
from airflow_megatron.spec.foreign.sidecar import NO_SPEC, is_sidecar, refuse_sidecar
from airflow_megatron.spec.model.dag_names import name_problems
from airflow_megatron.spec.model.schema import SweepSpecSection, validate
from airflow_megatron.spec.native.extension import extended
from airflow_megatron.spec.native.overrides import overridden
from airflow_megatron.spec.native.sweep import NativeSweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.spec.documents.yaml_document import YamlDocument
    from airflow_megatron.spec.model.sweep import Sweep

PRESETS: Final = "presets"
"""Folder of the presets that specs extend; they are not sweeps."""


def load_sweep(path: Path | str, settings: Iterable[str] = ()) -> Sweep:
    """Load and check a sweep spec file.

    :param settings: ``key=value`` each, for values of the file; see :mod:`airflow_megatron.spec.native.overrides`
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
    if is_sidecar(Path(document.file)):
        raise SpecError(document.problem((), *NO_SPEC))
    begin_spec()
    document, settings = extended(document), list(settings)
    sweep = dialect_sweep(document, settings)
    if sweep is None:
        refuse_sidecar(document)
        document = overridden(document, settings)
        sweep = NativeSweep(validate(SweepSpecSection, document), document)
    if problems := list(name_problems(sweep)):
        raise SpecError(problems)
    return sweep


def spec_files(directory: Path) -> list[Path]:
    """Return the spec files in a folder and its sub-folders, sorted; those of the folder itself come first.

    Hidden files and folders (an editor's drafts, ``.git``), folders called ``presets`` and sidecars of other specs hold
    no specs; a link to a folder is not followed.
    """
    found: list[Path] = []
    for folder, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if not name.startswith(".") and name != PRESETS)
        found += [
            Path(folder, name)
            for name in names
            if name.endswith((".yaml", ".yml")) and not name.startswith(".")
        ]
    return sorted((path for path in found if not is_sidecar(path)), key=lambda path: (len(path.parts), path))
