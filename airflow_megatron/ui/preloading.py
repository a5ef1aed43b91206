"""Modules that Airflow's long-lived processes import once, so that the processes which they fork need not.

A worker of the LocalExecutor, and the dag processor, fork a process for each task and for each reading of a file. What
the parent has imported costs the child nothing; otherwise each imports the same modules again. The price is that a
changed package is seen after Airflow's restart, as in its triggerer.
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
"""What each task of a sweep imports, with all that these import."""
OF_READERS: Final = ("airflow_megatron.dag_factory.building", "airflow_megatron.dag_factory.spec_folder")
"""What each reading of ``dags/sweeps.py`` imports."""

_COMPONENTS: Final = {"SchedulerJob": "scheduler", "DagProcessorJob": "dag-processor"}


def preload(component: str) -> None:
    """Import what the processes need that a component of Airflow's is going to fork.

    :param component: as :func:`starting_component` gives it
    """
    modules: tuple[str, ...] = ()
    if component == "dag-processor":
        modules = OF_READERS
    elif component == "scheduler" and _forks_tasks():
        modules = OF_TASKS
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # tasks report it; Airflow has to start
            log.exception("%s cannot be imported", name)


def starting_component(job: object) -> str:
    """Return the name of the Airflow component that this process starts, such as ``scheduler``; empty for none.

    The job object has its type only in tests: Airflow calls ``on_starting`` before it has its type (``Job.__init__`` in
    ``airflow/jobs/job.py``). A task calls it too, with a mark instead of a job; as a fork it has the
    scheduler's command.

    :param job: what ``on_starting`` gets
    """
    if job_type := getattr(job, "job_type", None):
        return _COMPONENTS.get(job_type, "")
    if type(job).__module__ != "airflow.jobs.job":
        return ""
    return sys.argv[1] if len(sys.argv) > 1 and Path(sys.argv[0]).name in ("airflow", "__main__.py") else ""


def _forks_tasks() -> bool:
    """Return whether the scheduler's own workers are forks of it."""
    executors = conf.get("core", "executor").replace(" ", "").split(",")
    local = any(name.endswith("LocalExecutor") for name in executors)
    return local and multiprocessing.get_start_method() == "fork"
