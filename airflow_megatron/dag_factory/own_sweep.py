"""The sweep of a task, from the cache: a task's process builds its own DAGs, and imports nothing that reads specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.dag_factory.spec_cache import SpecCache
from airflow_megatron.plan.sweep_owners import owning_file

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.outline import SweepOutline


def read_sweep(folder: Path, name: str) -> SweepOutline | None:
    """Return the outline of one sweep; None if the folder has none of this name.

    That is for a task of the sweep: it reads no other spec when the cache knows which file the sweep is in, and works
    on with the sweep's last outline when the spec has been broken meanwhile.
    """
    cache = SpecCache(folder)
    files = sorted(cache.names().get(name, ()))
    entries = [(file, cache.valid(file)) for file in files if file.exists()]
    if not entries or any(entry is None for _, entry in entries):
        from airflow_megatron.dag_factory.spec_folder import (
            read_spec_folder,  # all that reads and checks specs
        )

        outlines = {outline.name: outline for outline in read_spec_folder(folder).outlines}
        if name in outlines:
            return outlines[name]
        cache = SpecCache(folder)
        entries = [(file, cache.last(file)) for file in sorted(cache.names().get(name, ()))]
    known = [outline for _, entry in entries if entry and (outline := entry.outline or entry.last_good)]
    same = {outline.file: outline for outline in known if outline.name == name}
    return same.get(owning_file(name, same) or "")
