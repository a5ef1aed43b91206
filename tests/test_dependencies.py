"""Imports and declared dependencies agree, and the lock files have hashes for all packages."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOT = project_root()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_IMPORTED = {"apache-airflow-providers-ssh"}
"""Gives Airflow its connections of type ssh."""
LOCKS = ("requirements.lock", "Megatron-LM/requirements.lock")
INSTALLED_ELSEWHERE = {"pyyaml-ft"}
"""Required by other versions of Python than the one that runs the tests; it requires nothing."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return normal(re.match(r"[A-Za-z0-9._-]+", requirement)[0])  # type: ignore[index]


def declared(*extras: str) -> set[str]:
    listed = [*PROJECT["dependencies"]]
    for extra in extras:
        listed += PROJECT["optional-dependencies"][extra]
    return {name_of(requirement) for requirement in listed}


def imported(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0], path


distributions_of_packages = functools.cache(importlib.metadata.packages_distributions)


@functools.cache
def distributions(folder: Path) -> dict[str, Path]:
    """Return the imported distributions of a folder's modules, each with a file that imports it."""
    known = distributions_of_packages()
    found: dict[str, Path] = {}
    for module, path in imported(folder):
        if module in sys.stdlib_module_names or (ROOT / module).exists():
            continue
        names = [normal(name) for name in known.get(module, [module])]
        # several distributions share the package airflow
        found["apache-airflow" if module == "airflow" else names[0]] = path
    return found


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["airflow_megatron", "dags", "plugins"])
def test_what_is_imported_is_declared(folder: str) -> None:
    missing = distributions(ROOT / folder).keys() - declared("fits", "hydra", "plots", "simulation", "wandb")
    assert missing == set()


@pytest.mark.slow
def test_what_is_declared_is_imported() -> None:
    assert declared() - distributions(ROOT / "airflow_megatron").keys() == NOT_IMPORTED


def test_airflow_is_one_that_was_tested() -> None:
    """``task_runner.SUPERVISOR_COMMS`` is not a public interface, so a later Airflow is tested before it is allowed."""
    (requirement,) = [each for each in PROJECT["dependencies"] if name_of(each) == "apache-airflow"]
    assert requirement == "apache-airflow>=3.3,<3.4"
    assert importlib.metadata.version("apache-airflow").startswith("3.3.")


def locked(lock: str, python: str | None = None) -> dict[str, list[str]]:
    """Return package → hashes of a lock file; with ``python``, only what is installed for this version."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / lock).read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            text, *digests = re.split(r"\s+(?=--hash)", line.strip())
            requirement = Requirement(text)
            assert re.fullmatch(r"==[^ ;,]+", str(requirement.specifier)), line
            if python is None or applies(requirement, python):
                found[normal(requirement.name)] = digests
    return found


def applies(requirement: Requirement, python: str) -> bool:
    """Return whether a package of no extra is required on Linux with a version of Python, such as ``3.13``."""
    environment = {"python_version": python, "python_full_version": f"{python}.1", "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_hold_digests_of_everything(lock: str) -> None:
    for name, digests in locked(lock).items():
        assert digests, f"{name} has no digest; see the head of {lock}"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in digests), name


def test_the_lock_holds_what_is_declared() -> None:
    assert (
        declared("docs", "fits", "hydra", "plots", "simulation", "dev") - {"airflow-megatron"}
        <= locked(LOCKS[0]).keys()
    )


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_lock_is_complete_for_each_python(python: str) -> None:
    """With hashes, pip refuses a package that is required by another one and is not in the file."""
    present = locked(LOCKS[0], python).keys()
    assert len(present) > 150
    required = {
        (name, normal(requirement.name))
        for name in present - INSTALLED_ELSEWHERE
        for requirement in map(Requirement, importlib.metadata.requires(name) or ())
        if applies(requirement, python)
    }
    assert {(name, other) for name, other in required if other not in present} == set()


@pytest.mark.parametrize(
    ("script", "option"),
    [("docker/install.sh", "--require-hashes"), ("Megatron-LM/install.sh", "--require-hashes")],
)
def test_the_installers_require_digests(script: str, option: str) -> None:
    lines = (ROOT / script).read_text().replace("\\\n", " ").splitlines()
    commands = [line for line in lines if "pip install" in line and "lock" in line]
    assert commands
    assert all(option in line for line in commands)
