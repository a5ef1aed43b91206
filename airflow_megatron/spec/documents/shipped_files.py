"""Locate the files that come with the package beside its modules, in a checkout or in the installed package.

A wheel contains these folders of the checkout as package data (``pyproject.toml``, ``sources``), so the programs, on
this machine and in jobs, are the same in both.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

FOLDERS: Final = ("Megatron-LM", "dags", "docker", "docs/sites", "sbatch", "sweep_specs")
"""The folders of the checkout that a wheel contains."""
PACKAGE_DATA: Final = "_data"
"""The folder of the package that contains them in a wheel."""


@cache
def checkout() -> Path | None:
    """Return the checkout from which the package is imported, None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "sbatch").is_dir() else None


def shipped(folder: str) -> Path:
    """Return one of :data:`FOLDERS` of the package.

    :raises FileNotFoundError: if the package was installed without its data
    """
    root = checkout() or _package_data()
    path = root / folder
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is missing: the package is not installed completely; install it again"
        )
    return path


@cache
def _package_data() -> Path:
    # imported here, because a checkout does not need it, and it takes 20 ms
    from importlib.resources import files

    return Path(str(files(__package__.partition(".")[0]))) / PACKAGE_DATA
