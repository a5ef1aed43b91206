"""Where the project's folders are: ``sweep_specs/``, ``sbatch/`` and the machine's own ``.local/``."""

from __future__ import annotations

import os
from pathlib import Path

HOME_VARIABLE = "AIRFLOW_MEGATRON_HOME"
LOCAL_VARIABLE = "AIRFLOW_MEGATRON_LOCAL"
SWEEP_SPECS_VARIABLE = "AIRFLOW_MEGATRON_SWEEP_SPECS"
PINS_VARIABLE = "AIRFLOW_MEGATRON_PINS"


def project_root() -> Path:
    """Return the project's root: ``AIRFLOW_MEGATRON_HOME``, or the checkout that this package was installed from.

    :raises FileNotFoundError: when neither holds an ``sbatch/`` folder
    """
    named = os.environ.get(HOME_VARIABLE)
    root = Path(named) if named else Path(__file__).resolve().parents[3]
    if not (root / "sbatch").is_dir():
        raise FileNotFoundError(
            f"{root} holds no sbatch/ folder; set {HOME_VARIABLE} to the project's checkout"
        )
    return root


def local_dir() -> Path:
    """Return the folder of this machine's state: ``AIRFLOW_MEGATRON_LOCAL``, or ``.local`` in the project."""
    named = os.environ.get(LOCAL_VARIABLE)
    return Path(named).absolute() if named else project_root() / ".local"


def pins_dir() -> Path:
    """Return the folder of what runs have pinned: ``AIRFLOW_MEGATRON_PINS``, or ``pins`` in the machine's own.

    Every worker must reach it: with workers on several machines it is a shared folder.
    """
    named = os.environ.get(PINS_VARIABLE)
    return Path(named).absolute() if named else local_dir() / "pins"


def sweep_specs_dir() -> Path:
    """Return the folder that specs are dropped into."""
    return Path(os.environ.get(SWEEP_SPECS_VARIABLE) or project_root() / "sweep_specs")


def clusters_dir() -> Path:
    """Return the folder of the cluster profiles."""
    return project_root() / "sbatch" / "clusters"


def templates_dir() -> Path:
    """Return the folder of the sbatch templates."""
    return project_root() / "sbatch"
