"""Layers import only lower layers, and the layers without Airflow never load it."""

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
        "airflow_commands",
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
"""The other layers that each layer without Airflow may import."""
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
"""The folder of each module."""


@functools.cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Return (line, module) of every import of a file, including imports for type checkers."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module
            for alias in node.names:
                # in "from airflow_megatron import slurm" the module follows the keyword import
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


def test_an_upward_import_is_detected() -> None:
    assert "plan" not in allowed("slurm")
    assert "dag_factory" not in allowed("operators")
    assert "airflow_megatron.plan.sweep_plan" in [
        module for _, module in imported(PACKAGE / "operators" / "plan_sweep.py")
    ]


def rooms_imported() -> dict[str, set[str]]:
    """Return folder → the other folders that it imports."""
    arrows: dict[str, set[str]] = {room: set() for room in ROOM_OF.values()}
    for path in MODULES:
        arrows[room_of(path)].update(ROOM_OF[module] for _, module in imported(path) if module in ROOM_OF)
    return {room: below - {room} for room, below in arrows.items()}


def test_packages_do_not_import_each_other_in_a_circle() -> None:
    arrows = rooms_imported()
    while lowest := [room for room, below in arrows.items() if not below]:
        arrows = {room: below - set(lowest) for room, below in arrows.items() if room not in lowest}
    assert not arrows, "these rooms import each other in a circle"


LARGEST_ROOM = 15
"""Maximum number of modules in a folder, so that it is easy to survey."""


def test_packages_are_small_and_state_their_contents() -> None:
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


def test_modules_of_tests_have_different_names() -> None:
    """All folders of tests are on the path of a run, and the first module of a name hides the others."""
    names = Counter(
        file.name
        for file in (PACKAGE.parent / "tests").rglob("*.py")
        if file.name not in ("__init__.py", "__main__.py", "conftest.py")
    )
    assert [name for name, count in names.items() if count > 1] == []


def documented_parts() -> dict[str, dict[str, set[str]]]:
    """Return layer → part → the parts below it, as drawn in the section *Sub-packages* of docs/architecture.md."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = text.partition("## Sub-packages")[2].partition("## ")[0].replace("\n               ", " ")
    drawn: dict[str, dict[str, set[str]]] = {}
    for line in block.splitlines():
        if not line.startswith("    "):
            continue
        layer, _, chains = line.strip().partition(" ")
        below = drawn.setdefault(layer, {})
        for chain in chains.split(";"):
            levels = [{name.strip() for name in level.split(",")} for level in chain.split("─►")]
            for place, level in enumerate(levels):
                for name in level:
                    below.setdefault(name, set()).update(*levels[max(place - 1, 0) : place])
    return drawn


def parts_imported(layer: str) -> set[tuple[str, str]]:
    """Return the pairs (importing part, imported part) of a layer; a part is a folder or a module."""
    pairs: set[tuple[str, str]] = set()
    for path in MODULES:
        part = path.relative_to(PACKAGE).with_suffix("").parts[1:2]
        if layer_of(path) == layer and part:
            names = [module.split(".") for _, module in imported(path)]
            pairs |= {(part[0], name[2]) for name in names if name[:2] == [PACKAGE.name, layer] and name[2:]}
    return {(part, other) for part, other in pairs if part != other}


@pytest.mark.slow
def test_the_documented_parts_import_each_other_as_drawn() -> None:
    drawn = documented_parts()
    assert {"spec", "slurm", "megatron", "results", "cli"} <= set(drawn)
    wrong: list[str] = []
    for layer, below in drawn.items():
        for part in below:
            assert (PACKAGE / layer / part).is_dir() or (PACKAGE / layer / f"{part}.py").is_file(), part
        for part, other in sorted(parts_imported(layer)):
            reached, ahead = set[str](), set(below.get(part, ()))
            while ahead - reached:
                reached |= ahead
                ahead = set().union(*(below[name] for name in reached))
            if part in below and other in below and other not in reached:
                wrong.append(f"{layer}: {part} imports {other}")
    assert not wrong, "\n".join(wrong)


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
    """Programs that embed the package can catch all its errors with one class."""
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
    """Programs that run inside jobs, or before the installation, do not need this package."""
    root = PACKAGE.parent
    for path in [*(root / "Megatron-LM").rglob("*.py"), *(root / "docker").rglob("*.py")]:
        assert not [m for _, m in imported(path) if m.partition(".")[0] == PACKAGE.name], path
