"""Check that no other spec of the folder has the sweep's name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_megatron.plan.sweep_owners import owning_file, repeated_name
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.named_files import NamedFileError, read_spec_file
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.spec_files import load_sweep, spec_files

if TYPE_CHECKING:
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.sweep import Sweep


def require_own_name(sweep: Sweep) -> None:
    """Refuse a spec in ``sweep_specs/`` whose sweep name another spec there owns.

    :raises SpecError: if it is such a spec
    """
    problem = repeated_name_problem(sweep)
    if problem is not None:
        raise SpecError(problem)


def repeated_name_problem(sweep: Sweep) -> Problem | None:
    """Return the problem of such a spec, None without one."""
    folder, own = sweep_specs_dir(), Path(sweep.document.file).resolve()
    if not own.is_relative_to(folder.resolve()):
        return None
    files = [sweep.document.file]
    for path in spec_files(folder):
        if path.resolve() != own and _gives_name(path, sweep.name):
            files.append(str(path))
    kept = owning_file(sweep.name, files)
    if kept == sweep.document.file:
        return None
    return sweep.document.problem(("name",), *repeated_name(sweep.name, sweep.document.file, files, kept))


def _gives_name(path: Path, name: str) -> bool:
    """Return whether a spec defines a sweep of this name; it is loaded only if its text or file name contains it."""
    try:
        if path.stem != name and name not in read_spec_file(path):
            return False
        return load_sweep(path).name == name
    except (OSError, NamedFileError, SpecError):
        return False
