"""Check that no other spec of the folder has the sweep's name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.plan.sweep_owners import owning_file, repeated_name
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.named_files import NamedFileError, read_spec_file
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.spec_files import load_sweep, spec_files
from airflow_megatron.spec.trust.isolation import Limits, run_isolated

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.sweep import Sweep


EACH_S: Final = 1.7
"""Limit of processor time for each other spec, in seconds: Airflow does not take a spec that needs more."""
ALL_S: Final = 5.0
"""Limit for all of them; the rest is not read, because Airflow checks the names too."""


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
    files, left_s = [sweep.document.file], ALL_S
    for path in spec_files(folder):
        if left_s <= 0 or path.resolve() == own or not _may_give_name(path, sweep.name):
            continue
        name, used_s = _name_of(path)
        left_s -= used_s
        if name == sweep.name:
            files.append(str(path))
    kept = owning_file(sweep.name, files)
    if kept == sweep.document.file:
        return None
    return sweep.document.problem(("name",), *repeated_name(sweep.name, sweep.document.file, files, kept))


def _may_give_name(path: Path, name: str) -> bool:
    try:
        return path.stem == name or name in read_spec_file(path)
    except (OSError, NamedFileError):
        return False


def _name_of(path: Path) -> tuple[str | None, float]:
    """Return the name of another user's sweep and the seconds of processor time that reading its spec took."""

    def read(report: Callable[[Any], None]) -> None:
        with suppress(SpecError):
            report(load_sweep(path).name)

    result = run_isolated(read, Limits(EACH_S, clock_s=4 * EACH_S, idle_s=EACH_S))
    return (result.answers[0] if result.answers else None), result.processor_s
