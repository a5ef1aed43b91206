"""Building the DAGs of all specs in ``sweep_specs/``, and telling which specs are wrong."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, get_parsing_context

from airflow_megatron.dag_factory.callbacks import callbacks
from airflow_megatron.dag_factory.point_dag import build_point_dag, point_dag_id
from airflow_megatron.dag_factory.sweep_dag import build_sweep_dag
from airflow_megatron.planning.plan import check_document
from airflow_megatron.spec.errors import Problem, SpecError
from airflow_megatron.spec.project import sweep_specs_dir
from airflow_megatron.spec.spec_files import load_sweep, spec_files

if TYPE_CHECKING:
    from airflow_megatron.spec.sweep import Sweep

log = logging.getLogger(__name__)


class SweepSpecErrors(Exception):
    """The specs that cannot be used; shown by Airflow as an import error."""


def load_sweeps(directory: Path | None = None) -> tuple[list[Sweep], list[Problem]]:
    """Load every spec of a folder; return the good ones, sorted by file, and what is wrong with the others."""
    folder = directory or sweep_specs_dir()
    sweeps: dict[str, Sweep] = {}
    problems: list[Problem] = []
    for path in spec_files(folder):
        try:
            sweep = load_sweep(path)
            check_document(sweep)
        except SpecError as error:
            problems += error.problems
            continue
        if sweep.name in sweeps:
            other = Path(sweeps[sweep.name].document.file).name
            problems.append(
                sweep.document.problem(
                    ("name",), f"{other} defines a sweep {sweep.name!r} too", "give it another name"
                )
            )
            continue
        sweeps[sweep.name] = sweep
    return list(sweeps.values()), problems


def build_sweep_dags(directory: Path | None = None) -> list[DAG]:
    """Build both DAGs of every valid spec.

    A worker that parses the file for one task gets the DAGs of that task's sweep only. Invalid specs are passed over
    here and reported by :func:`raise_for_spec_errors`, so that a bad spec never hides another sweep.
    """
    wanted = get_parsing_context().dag_id
    dags: list[DAG] = []
    for sweep in load_sweeps(directory)[0]:
        if wanted is None or wanted in (sweep.name, point_dag_id(sweep.name)):
            defaults = default_args(sweep)
            dags += [build_sweep_dag(sweep, defaults), build_point_dag(sweep, defaults)]
    return dags


def default_args(sweep: Sweep) -> dict[str, Any]:
    """Return the ``default_args`` of a sweep's DAGs.

    A try is spent when a busy scheduler takes a task that a trigger has resumed for a killed one, and trying again does
    no harm: no task submits twice. What trying again cannot mend fails at once.
    """
    return {
        "owner": "megatron",
        "retries": 5,
        "retry_delay": timedelta(seconds=20),
        "on_failure_callback": callbacks(sweep, "failure", always=True),
    }


def raise_for_spec_errors(directory: Path | None = None) -> None:
    """Raise one error that lists everything wrong in the folder's specs.

    :raises SweepSpecErrors: when anything is wrong
    """
    problems = load_sweeps(directory)[1]
    if problems:
        told = "\n".join(str(problem) for problem in sorted(problems))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise SweepSpecErrors(f"{count} in sweep specs:\n{told}")
