"""Entry points of Airflow's DAG files: the DAGs of all specs in ``sweep_specs/``, and the errors of the others."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from airflow.sdk import DAG, get_parsing_context

from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.dag_factory.own_sweep import read_sweep
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.pins.runs_in_flight import sweeps_in_flight, with_runs_in_flight
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.model.dag_names import sweep_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.outline import SweepOutline

MOST_SHOWN: Final = 200_000
"""Characters of all errors together; Airflow keeps them in its database."""


class SweepSpecErrors(AirflowMegatronError):
    """The specs that cannot be used; shown by Airflow as an import error."""


def build_sweep_dags(directory: Path | None = None) -> list[DAG]:
    """Build both DAGs of every valid spec.

    A worker that parses the file for one task gets the DAGs of that task's sweep only. Invalid specs are skipped
    here and reported by :func:`raise_for_spec_errors`, so that a bad spec never hides another sweep. What runs under
    way have pinned stays in their DAGs, see :mod:`airflow_megatron.plan.pins.runs_in_flight`.
    """
    folder = directory or sweep_specs_dir()
    wanted = get_parsing_context().dag_id
    store = PinStore()
    if wanted is not None:
        sweep = sweep_of(wanted)
        return _build(read_sweep(folder, sweep), sweep, folder, store)
    from airflow_megatron.dag_factory.spec_folder import read_spec_folder  # no task needs what it imports

    outlines = {outline.name: outline for outline in read_spec_folder(folder).outlines}
    dags: list[DAG] = []
    for name in (*outlines, *sweeps_in_flight(folder, outlines, store)):
        try:
            dags += _build(outlines.get(name), name, folder, store)
        except SpecError:  # it could be built when it was read: reported by the other file
            continue
    return dags


def _build(outline: SweepOutline | None, sweep: str, folder: Path, store: PinStore) -> list[DAG]:
    """Build the DAGs of a sweep with the stages of its runs in progress.

    :param outline: of its spec, None if that cannot be read or has gone
    """
    kept = with_runs_in_flight(outline, sweep, folder, store)
    if kept is None:
        return []
    try:
        return build_dags(kept)
    except SpecError:
        if outline is None or kept == outline:
            raise
        return build_dags(outline)


def raise_for_spec_errors(directory: Path | None = None) -> None:
    """Raise one error that lists everything wrong in the folder's specs.

    :raises SweepSpecErrors: if anything is wrong
    """
    if get_parsing_context().dag_id is not None:
        return
    from airflow_megatron.dag_factory.spec_folder import read_spec_folder

    problems = read_spec_folder(directory or sweep_specs_dir()).problems
    if problems:
        listed = _listed(sorted(problems))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise SweepSpecErrors(f"{count} in sweep specs:\n{listed}")


def _listed(problems: Iterable[Problem]) -> str:
    """Return the problems, one a line; of very many only the first of each file, so that none hides another's."""
    of_files: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        of_files[problem.file].append(str(problem))
    whole = [line for lines in of_files.values() for line in lines]
    if sum(map(len, whole)) <= MOST_SHOWN:
        return "\n".join(whole)
    shown: list[str] = []
    left = MOST_SHOWN
    # short ones first: a long message hides nothing but itself
    for file in sorted(of_files, key=lambda file: len(of_files[file][0])):
        first, *others = of_files[file]
        left -= len(first)
        if left < 0:
            break
        more = f" … and {len(others)} more problems of this file: airflow-megatron lint shows them"
        shown.append(first + more if others else first)
    listed = "\n".join(sorted(shown))
    unseen = len(of_files) - len(shown)
    return f"{listed}\n… and {unseen} more files" if unseen else listed
