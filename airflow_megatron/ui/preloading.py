"""What Airflow's long-lived processes import and compute once, so that forked processes need not do it.

A worker of the LocalExecutor, and the dag processor, fork a process for each task and for each parsing of a file. A
child inherits the imported modules of its parent; otherwise each child imports the same modules again. It also
inherits the validators of specs, the state of this package's files and the listeners of tasks, a quarter of the
processor time of a short task. The scheduler forks the workers itself, or has a fork server do it (the default from
Python 3.14), which then imports the modules. The triggerer forks one process, which runs all triggers; it would
import the modules while the first triggers wait. A disadvantage is that a changed package is used only after a
restart of Airflow, which the triggerer needs anyhow.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import sys
from pathlib import Path
from typing import Final

from airflow.configuration import conf

log = logging.getLogger(__name__)

OF_TASKS: Final = (
    "airflow_megatron.dag_factory.building",
    "airflow_megatron.dag_factory.own_sweep",
    "airflow_megatron.dag_factory.spec_files",
    "airflow_megatron.hooks.asyncssh_transport",
)
"""Modules that each task of a sweep imports, with their dependencies."""
OF_READERS: Final = ("airflow_megatron.dag_factory.building", "airflow_megatron.dag_factory.spec_folder")
"""Modules that each parsing of ``dags/sweeps.py`` imports."""
OF_TRIGGERS: Final = (
    "airflow_megatron.triggers.slurm_job",
    "airflow_megatron.triggers.point_runs",
    "airflow_megatron.hooks.asyncssh_transport",
)
"""Modules that the triggers of a sweep import, with their dependencies."""

_COMPONENTS: Final = {
    "SchedulerJob": "scheduler",
    "DagProcessorJob": "dag-processor",
    "TriggererJob": "triggerer",
}


def preload(component: str) -> None:
    """Import and compute what processes forked by a component of Airflow need.

    :param component: result of :func:`starting_component`
    """
    modules: tuple[str, ...] = ()
    if component == "dag-processor":
        modules = OF_READERS
    elif component == "triggerer":
        modules = OF_TRIGGERS
    elif component == "scheduler" and _has_local_executor():
        match multiprocessing.get_start_method():
            case "fork":
                modules = OF_TASKS
            case "forkserver":
                multiprocessing.set_forkserver_preload(
                    ["__main__", *_configured_for_fork_server(), *OF_TASKS]
                )
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # tasks report the error; Airflow must start
            log.exception("%s cannot be imported", name)
    if modules and component in ("scheduler", "dag-processor"):
        try:
            _compute(component)
        except Exception:  # as above
            log.exception("what tasks and parsers of files need cannot be computed")


def _compute(component: str) -> None:
    """Compute what each process that builds DAGs or runs a task needs, and what does not depend on DAG and task."""
    from airflow_megatron.dag_factory.spec_cache import code_state
    from airflow_megatron.spec.model.schema import build_sections

    build_sections()
    code_state()
    if component == "scheduler":
        from airflow.sdk.listener import get_listener_manager

        get_listener_manager()


def starting_component(job: object) -> str:
    """Return the name of the Airflow component that this process starts, such as ``scheduler``; empty for none.

    The job object has its type only in tests: Airflow calls ``on_starting`` before it has its type (``Job.__init__``
    in ``airflow/jobs/job.py``). Airflow also calls ``on_starting`` in a task, with a marker instead of a job; a forked
    task has the scheduler's command line.

    :param job: the argument of ``on_starting``
    """
    if job_type := getattr(job, "job_type", None):
        return _COMPONENTS.get(job_type, "")
    if type(job).__module__ != "airflow.jobs.job":
        return ""
    return sys.argv[1] if len(sys.argv) > 1 and Path(sys.argv[0]).name in ("airflow", "__main__.py") else ""


def _has_local_executor() -> bool:
    executors = conf.get("core", "executor").replace(" ", "").split(",")
    return any(name.endswith("LocalExecutor") for name in executors)


def _configured_for_fork_server() -> list[str]:
    """Return the modules of ``mp_forkserver_preload``, which Airflow reads only with ``mp_start_method``."""
    option = "mp_forkserver_preload"
    names = conf.get("scheduler", option, fallback=None) or conf.get("core", option, fallback=None) or ""
    return [name.strip() for name in names.split(",") if name.strip()]
