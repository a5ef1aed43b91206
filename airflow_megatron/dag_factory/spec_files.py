"""Entry points of Airflow's DAG files: the DAGs of all specs in ``sweep_specs/``, and the errors of the others."""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from airflow.sdk import DAG, get_parsing_context

from airflow_megatron.airflow_commands.run_command import collect_seldom
from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.dag_factory.own_sweep import read_sweep
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.pins.runs_in_flight import sweeps_in_flight, with_runs_in_flight
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.model.dag_names import sweep_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.outline import SweepOutline

log = logging.getLogger(__name__)

MOST_SHOWN: Final = 200_000
"""Maximum number of characters of all errors, which Airflow stores in its database."""


class SweepSpecErrors(AirflowMegatronError):
    """The errors of invalid specs, which Airflow shows as an import error."""


def build_sweep_dags(directory: Path | None = None) -> list[DAG]:
    """Build both DAGs of every valid spec.

    A worker that parses the file for one task gets the DAGs of that task's sweep only. Invalid specs are skipped here
    and reported by :func:`raise_for_spec_errors`, so that an invalid spec never hides another sweep. The pinned stages
    of runs in progress stay in the DAGs, see :mod:`airflow_megatron.plan.pins.runs_in_flight`.
    """
    if _for_dags_test():
        collect_seldom()
    folder = directory or sweep_specs_dir()
    wanted = get_parsing_context().dag_id
    store = PinStore()
    if wanted is not None:
        sweep = sweep_of(wanted)
        outline = read_sweep(folder, sweep)
        return _build(outline, with_runs_in_flight(outline, sweep, folder, store))
    from airflow_megatron.dag_factory.spec_folder import (  # no task needs its imports
        read_spec_folder,
        stage_budget,
    )

    outlines = {outline.name: outline for outline in read_spec_folder(folder).outlines}
    kept = {
        name: with_runs_in_flight(outlines.get(name), name, folder, store)
        for name in (*outlines, *sweeps_in_flight(folder, outlines, store))
    }
    left = stage_budget() - sum(outline.weight for outline in outlines.values())
    dags: list[DAG] = []
    for name in _without_excess(kept, outlines, left):
        try:
            dags += _build(outlines.get(name), kept[name])
        except SpecError:  # it could be built when it was read; the other file reports the error
            continue
    return dags


def _without_excess(
    kept: dict[str, SweepOutline | None], outlines: Mapping[str, SweepOutline], left: int
) -> list[str]:
    """Remove from outlines the stages that only runs in progress have, where there are too many; return the sweeps.

    The sweeps with the most such stages lose them first. Without this, a sweep that is edited while it runs, or specs
    that are removed while their sweeps run, would take the time in which Airflow parses all sweeps.

    :param kept: sweep → outline with the stages of its runs in progress; changed
    :param outlines: sweep → outline of its spec
    :param left: maximum number of such stages
    """
    more = {
        name: one.weight - (outlines[name].weight if name in outlines else 0)
        for name, one in kept.items()
        if one is not None
    }
    for name in sorted(more, key=lambda name: (more[name], name)):
        if more[name] > left:
            log.warning(
                "the DAGs of %s lack %d stages of its runs in progress, because all sweeps have too many; "
                "wait for runs to end, or stop some",
                name,
                more[name],
            )
            kept[name] = outlines.get(name)
        else:
            left -= more[name]
    return list(kept)


def _build(outline: SweepOutline | None, kept: SweepOutline | None) -> list[DAG]:
    """Build the DAGs of a sweep with the stages of its runs in progress.

    :param outline: outline of its spec, None if that cannot be read or was deleted
    :param kept: the same, with those stages
    """
    if kept is None:
        return []
    try:
        return build_dags(kept)
    except SpecError:
        if outline is None or kept == outline:
            raise
        return build_dags(outline)


def raise_for_spec_errors(directory: Path | None = None) -> None:
    """Raise one error that lists all problems of the folder's specs.

    :raises SweepSpecErrors: if there are problems
    """
    if get_parsing_context().dag_id is not None:
        return
    from airflow_megatron.dag_factory.spec_folder import read_spec_folder

    folder = directory or sweep_specs_dir()
    if not folder.is_dir():
        raise SweepSpecErrors(
            f"{folder}, the folder of sweep specs, does not exist: create it, or correct sweep_specs_folder in "
            "[megatron] of airflow.cfg"
        )
    problems = read_spec_folder(folder).problems
    if problems:
        listed = _listed(sorted(problems))
        count = counted(len(problems), "problem")
        message = f"{count} in sweep specs:\n{listed}"
        if _for_dags_test():  # for an unknown DAG it prints a traceback and no import errors
            print(message, file=sys.stderr)
        raise SweepSpecErrors(message)


def _for_dags_test() -> bool:
    """Return whether the command of this process is ``airflow dags test``."""
    return sys.argv[1:3] == ["dags", "test"]


def _listed(problems: Iterable[Problem]) -> str:
    """Return the problems, one per line; of very many only the first ones of each file, so that no file hides
    another.
    """
    of_files: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        of_files[problem.file].append(str(problem))
    whole = [line for lines in of_files.values() for line in lines]
    if sum(map(len, whole)) <= MOST_SHOWN:
        return "\n".join(whole)
    shown: list[str] = []
    left = MOST_SHOWN
    # short ones first, so that a long message hides only itself
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
