"""The project's folders: specs, cluster profiles, templates, and the machine's own ``.local/``.

Folders in Airflow's configuration have precedence, then those in the project, then those of the package.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.configuration import (
    CLUSTERS_FOLDER,
    SECTION,
    SWEEP_SPECS_FOLDER,
    TEMPLATES_FOLDER,
    airflow_home,
    configured_folder,
    expanded,
    option_variable,
)
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.shipped_files import checkout, shipped

HOME_VARIABLE = "AIRFLOW_MEGATRON_HOME"
LOCAL_VARIABLE = "AIRFLOW_MEGATRON_LOCAL"
SWEEP_SPECS_VARIABLE = "AIRFLOW_MEGATRON_SWEEP_SPECS"
PINS_VARIABLE = "AIRFLOW_MEGATRON_PINS"

PROJECT_FOLDERS = ("sbatch", "clusters", "sweep_specs")
"""Folders of which a project has at least one."""


class NoProjectError(AirflowMegatronError, FileNotFoundError):
    """The folder that ``AIRFLOW_MEGATRON_HOME`` names is not a project."""


def project_root() -> Path:
    """Return the project's root.

    This is the folder in ``AIRFLOW_MEGATRON_HOME``, else the checkout from which the package is imported, else
    Airflow's home, which may be empty.

    :raises NoProjectError: if the variable names a folder that is not a project
    """
    root = _named(HOME_VARIABLE)
    if root is None:
        return checkout() or airflow_home()
    if not _is_project(root):
        *others, last = (f"{name}/" for name in PROJECT_FOLDERS)
        raise NoProjectError(
            f"{root} is not a project: it holds no {', '.join(others)} or {last} folder; set {HOME_VARIABLE} to the "
            "project's checkout, or to a project that `airflow-megatron init` has made"
        )
    return root


def local_dir() -> Path:
    """Return the folder of this machine's state: ``AIRFLOW_MEGATRON_LOCAL``, or ``.local`` in the project."""
    return _named(LOCAL_VARIABLE) or project_root() / ".local"


def pins_dir() -> Path:
    """Return the folder of the pins of runs: ``AIRFLOW_MEGATRON_PINS``, or ``pins`` in :func:`local_dir`.

    Every worker needs access to it; for workers on several machines it must be a shared folder.
    """
    return _named(PINS_VARIABLE) or local_dir() / "pins"


def sweep_specs_dir() -> Path:
    """Return the folder for specs; without a project, that of the shipped examples."""
    named = os.environ.get(SWEEP_SPECS_VARIABLE)
    if named:
        return Path(expanded(named))
    chosen = configured_folder(SWEEP_SPECS_FOLDER)
    if chosen is None:
        root = project_root()
        chosen = root / "sweep_specs" if _is_project(root) else shipped("sweep_specs")
    return chosen


def clusters_dir() -> Path:
    """Return the folder of the cluster profiles: the project's ``clusters/`` or ``sbatch/clusters/``."""
    chosen = configured_folder(CLUSTERS_FOLDER)
    if chosen is not None:
        return chosen
    own = project_root() / "clusters"
    return own if own.is_dir() else project_folder("sbatch") / "clusters"


def templates_dir() -> Path:
    """Return the folder of the sbatch templates."""
    return configured_folder(TEMPLATES_FOLDER) or project_folder("sbatch")


def check_configured_folders() -> None:
    """Check that the folders of profiles and templates exist if the configuration names them.

    Without this, the profiles would all be unknown, and the shipped templates would replace those of the site.

    :raises SpecError: with the option and its folder
    """
    problems = [
        Problem(
            str(folder), 0, 0, f"{option} in [{SECTION}] is not a folder", "create it, or correct the option"
        )
        for option in (CLUSTERS_FOLDER, TEMPLATES_FOLDER)
        if (folder := configured_folder(option)) is not None and not folder.is_dir()
    ]
    if problems:
        raise SpecError(problems)


def job_programs_dir() -> Path:
    """Return the folder of the programs that run in jobs."""
    return project_folder("Megatron-LM")


def project_folder(name: str) -> Path:
    """Return a folder of the project, or that of the package if the project has none.

    :param name: one of :data:`airflow_megatron.spec.documents.shipped_files.FOLDERS`
    """
    own = project_root() / name
    return own if own.is_dir() else shipped(name)


def project_variables() -> dict[str, str]:
    """Return environment variables with which another Airflow home finds the same folders."""
    root = project_root()
    folders = {
        option: configured_folder(option)
        for option in (SWEEP_SPECS_FOLDER, CLUSTERS_FOLDER, TEMPLATES_FOLDER)
    }
    variables = {option_variable(option): str(folder) for option, folder in folders.items() if folder}
    variables[LOCAL_VARIABLE] = str(local_dir())
    if _is_project(root):
        variables[HOME_VARIABLE] = str(root)
    return variables


def _named(variable: str) -> Path | None:
    """Return the folder that an environment variable names, ``~`` and variables in it expanded as Airflow does."""
    named = os.environ.get(variable)
    return Path(expanded(named)).absolute() if named else None


def _is_project(root: Path) -> bool:
    return any((root / name).is_dir() for name in PROJECT_FOLDERS)
