"""The sweep of a task, from the cache, so that a task's process builds only its DAGs and imports no parser of
specs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_megatron.dag_factory.spec_cache import SpecCache
from airflow_megatron.plan.sweep_owners import owning_file

if TYPE_CHECKING:
    from airflow_megatron.spec.model.outline import SweepOutline


def read_sweep(folder: Path, name: str) -> SweepOutline | None:
    """Return the outline of one sweep; None if the folder has no sweep of this name.

    For a task of the sweep. No other spec is read if the cache has the sweep's file. If the spec has become invalid,
    the result is the last outline of the sweep.
    """
    cache = SpecCache(folder)
    files = [file for file in sorted(cache.names().get(name, ())) if file.exists()]
    owner = owning_file(name, map(str, files))
    entry = cache.valid(Path(owner)) if owner else None
    if entry is not None and entry.outline is not None and entry.outline.name == name:
        return entry.outline  # whatever state other files of this name are in
    entries = [(file, cache.valid(file)) for file in files]
    if not entries or any(entry is None for _, entry in entries):
        from airflow_megatron.dag_factory.spec_folder import (
            read_spec_folder,  # imports the parsers and checks of specs
        )

        outlines = {outline.name: outline for outline in read_spec_folder(folder).outlines}
        if name in outlines:
            return outlines[name]
        cache = SpecCache(folder)
        entries = [(file, cache.last(file)) for file in sorted(cache.names().get(name, ()))]
    known = [outline for _, entry in entries if entry and (outline := entry.outline or entry.last_good)]
    same = {outline.file: outline for outline in known if outline.name == name}
    return same.get(owning_file(name, same) or "")
