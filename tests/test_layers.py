"""Imports go down only, and what computes without Airflow never loads it."""

from __future__ import annotations

import ast
import builtins
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_megatron

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(airflow_megatron.__file__).parent
AIRFLOW_CLASSES = frozenset(
    {
        "assets",
        "decorators",
        "hooks",
        "links",
        "notifications",
        "operators",
        "sensors",
        "task_runtime",
        "triggers",
    }
)
BELOW: dict[str, frozenset[str]] = {
    "spec": frozenset(),
    "megatron": frozenset({"spec"}),
    "slurm": frozenset({"spec"}),
    "results": frozenset({"megatron", "slurm", "spec"}),
    "notices": frozenset({"results", "megatron", "slurm", "spec"}),
    "requirements": frozenset({"megatron", "slurm", "spec"}),
    "checks": frozenset({"requirements", "notices", "results", "megatron", "slurm", "spec"}),
    "plan": frozenset({"checks", "requirements", "notices", "results", "megatron", "slurm", "spec"}),
    "supervision": frozenset(
        {"plan", "checks", "requirements", "notices", "results", "megatron", "slurm", "spec"}
    ),
    "simulation": frozenset({"supervision", "plan", "results", "megatron", "slurm", "spec"}),
}
"""What each layer that knows no Airflow may import, besides itself."""
TOP = frozenset({"dag_factory", "cli", "ui"})
BUILT_IN_ERRORS = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))


def allowed(layer: str) -> frozenset[str]:
    if layer in BELOW:
        return BELOW[layer]
    knowledge = frozenset(BELOW) - ({"simulation"} if layer != "cli" else set())
    return knowledge | AIRFLOW_CLASSES | (TOP if layer in TOP else frozenset())


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).parent.parts)


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


ROOM_OF = {name_of(path): room_of(path) for path in MODULES}
"""The room of each module."""


@functools.cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Return (line, module) of every import of a file, those for type checkers only included."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module
            for alias in node.names:
                # "from airflow_megatron import slurm" names the module after the word import
                inner = f"{node.module}.{alias.name}"
                found.append((node.lineno, inner if inner in ROOM_OF else node.module))
    return found


def wrong_imports(path: Path) -> Iterator[str]:
    layer = layer_of(path)
    for line, module in imported(path):
        words = module.split(".")
        if words[0] == PACKAGE.name and len(words) > 1:
            below = words[1]
            if below not in {layer, "errors"} | allowed(layer) and not below.startswith("__"):
                yield f"{path}:{line}: {layer} imports {module}"
        elif words[0] == "airflow" and layer in BELOW:
            yield f"{path}:{line}: {layer} imports Airflow"


def test_imports_go_down() -> None:
    wrong = [each for path in MODULES for each in wrong_imports(path)]
    assert not wrong, "\n".join(wrong)


def test_an_upward_import_would_be_seen() -> None:
    assert "plan" not in allowed("slurm")
    assert "dag_factory" not in allowed("operators")
    assert "airflow_megatron.plan.sweep_plan" in [
        module for _, module in imported(PACKAGE / "operators" / "plan_sweep.py")
    ]


def rooms_imported() -> dict[str, set[str]]:
    """Return which rooms each room imports, besides itself."""
    arrows: dict[str, set[str]] = {room: set() for room in ROOM_OF.values()}
    for path in MODULES:
        arrows[room_of(path)].update(ROOM_OF[module] for _, module in imported(path) if module in ROOM_OF)
    return {room: below - {room} for room, below in arrows.items()}


def test_rooms_import_in_no_circle() -> None:
    arrows = rooms_imported()
    while lowest := [room for room, below in arrows.items() if not below]:
        arrows = {room: below - set(lowest) for room, below in arrows.items() if room not in lowest}
    assert not arrows, "these rooms import each other in a circle"


LARGEST_ROOM = 15
"""Modules of a folder that a newcomer can take in at one look."""


def test_rooms_are_small_and_say_what_they_hold() -> None:
    for room in sorted(set(ROOM_OF.values())):
        folder = PACKAGE.joinpath(*room.split(".")) if room else PACKAGE
        assert len([*folder.glob("*.py")]) <= LARGEST_ROOM + 1, f"{room}: more than {LARGEST_ROOM} modules"
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), f"{room} says nothing"


def test_folders_of_tests_and_of_job_programs_are_small() -> None:
    project = PACKAGE.parent
    counts = Counter(
        file.parent for part in ("tests", "Megatron-LM") for file in (project / part).rglob("*.py")
    )
    assert [folder for folder, count in counts.items() if count > LARGEST_ROOM] == []


@pytest.mark.slow
def test_nothing_of_airflow_is_loaded_by_the_lower_layers() -> None:
    modules = [name_of(path) for path in MODULES if layer_of(path) in BELOW]
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'airflow'))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_errors_have_one_root() -> None:
    """Whoever embeds the package catches all of its errors by one name."""
    strays = [
        f"{path}: {node.name}"
        for path in MODULES
        if layer_of(path) != "errors"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and node.name.endswith("Error")
        and {base.id for base in node.bases if isinstance(base, ast.Name)} <= BUILT_IN_ERRORS
    ]
    assert strays == []


@pytest.mark.slow
def test_megatron_scripts_and_cluster_scripts_stand_alone() -> None:
    """What runs inside a job, or before anything is installed, does not need this package."""
    root = PACKAGE.parent
    for path in [*(root / "Megatron-LM").rglob("*.py"), *(root / "docker").rglob("*.py")]:
        assert not [m for _, m in imported(path) if m.partition(".")[0] == PACKAGE.name], path
