"""Modules that Airflow's long-lived processes import once, so that the processes which they fork need not.

A worker of the LocalExecutor, and the dag processor, fork a process for each task and for each reading of a file. What
the parent has imported costs the child nothing; otherwise each imports the same modules again. The price is that a
changed package is seen after Airflow's restart, as in its triggerer.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
from typing import Final

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


def preload(component: object) -> None:
    """Import what the processes need that a component of Airflow's is going to fork.

    :param component: the job of Airflow's that starts: its ``job_type`` and, of a scheduler, its ``executors``
    """
    modules: tuple[str, ...] = ()
    job_type = getattr(component, "job_type", "")
    if job_type == "DagProcessorJob":
        modules = OF_READERS
    elif job_type == "SchedulerJob" and _forks_tasks(component):
        modules = OF_TASKS
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # tasks report it; Airflow has to start
            log.exception("%s cannot be imported", name)


def _forks_tasks(scheduler: object) -> bool:
    executors = getattr(scheduler, "executors", ())
    return multiprocessing.get_start_method() == "fork" and any(executor.is_local for executor in executors)
