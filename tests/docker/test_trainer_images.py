"""The recipes of the trainer's images. Builds need a registry and minutes, so only their commands are tested here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "trainer"
RECIPES = sorted(FOLDER.glob("Containerfile.*"), key=str)
INSTRUCTION = re.compile(r"(ARG|FROM|COPY|RUN|ENV) (.+)", re.S)


def instructions(recipe: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Containerfile: keyword and text."""
    lines = [line for line in recipe.read_text().splitlines() if not line.startswith("#")]
    found = []
    for text in "\n".join(lines).replace("\\\n", "").split("\n"):
        match = INSTRUCTION.fullmatch(text)
        assert match, f"{recipe.name}: {text!r} is no instruction that the recipes use"
        found.append((match[1], match[2]))
    return found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_recipe_names_its_base_by_version_and_copies_what_is_there(recipe: Path) -> None:
    found = instructions(recipe)
    (base,) = [
        text.removeprefix("BASE=") for keyword, text in found if keyword == "ARG" and text.startswith("BASE")
    ]
    bases = [base, *re.findall(r"BASE=(\S+) \.", recipe.read_text())]
    for image in bases:
        assert re.search(r":[\w.-]*\d+\.\d+[\w.-]*$", image), f"{image} has no version"
    assert next(text for keyword, text in found if keyword == "FROM") == "${BASE}"
    for keyword, text in found:
        if keyword == "COPY":
            assert all((ROOT / source).exists() for source in text.split()[:-1])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_the_commands_of_a_recipe_are_clean(recipe: Path) -> None:
    commands = [text for keyword, text in instructions(recipe) if keyword == "RUN"]
    assert commands
    names = [text.partition("=")[0] for keyword, text in instructions(recipe) if keyword == "ARG"]
    head = "#!/bin/sh\n" + "".join(f"{name}=x\nexport {name}\n" for name in names)
    shellcheck = [str(Path(sys.executable).with_name("shellcheck")), "--severity=warning", "-"]
    for command in commands:
        checked = subprocess.run(
            shellcheck, input=f"{head}{command}\n", capture_output=True, text=True, check=False
        )
        assert checked.stdout == ""


@pytest.mark.slow
def test_numpy_has_the_name_that_old_releases_call_and_is_loaded_only_when_needed() -> None:
    """Environments import the module at the start of Python, by a line in a ``.pth`` file."""
    pytest.importorskip("numpy", minversion="2.0")
    program = (
        "import numpy_product\n"
        "import sys; assert 'numpy' not in sys.modules\n"
        "import json, numpy.linalg\n"
        "print(numpy.product([2, 3]), numpy.product is numpy.prod, numpy.__spec__.name, len(sys.meta_path))"
    )
    bare = "import sys, numpy; print(hasattr(numpy, 'product'), len(sys.meta_path))"
    run = [sys.executable, "-c"]
    found = subprocess.run(
        [*run, program], cwd=ROOT / "Megatron-LM", capture_output=True, text=True, check=True
    ).stdout.split()
    without = subprocess.run([*run, bare], capture_output=True, text=True, check=True).stdout.split()
    assert without[0] == "False"
    assert found == ["6", "True", "numpy", without[1]]


@pytest.mark.parametrize(
    ("path", "imported"),
    [("[]", False), ("sys.path", True)],
    ids=["while pip builds a package", "always else"],
)
def test_python_starts_where_the_module_cannot_be_imported(path: str, imported: bool, tmp_path: Path) -> None:
    """While pip builds a package, it reads the ``.pth`` files of the environment without the standard library."""
    for name in ("numpy_product.py", "numpy_product.pth"):
        shutil.copy(ROOT / "Megatron-LM" / name, tmp_path)
    program = f"import sys, site; sys.path = {path}; site.addsitedir({str(tmp_path)!r})"
    ending = "sys.stdout.write(str('numpy_product' in sys.modules))"
    command = [sys.executable, "-I", "-S", "-c", f"{program}; {ending}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", str(imported))


LOCK = """\
# made by pip freeze
absl-py==2.5.1 \\
    --hash=sha256:aa
    # via something
Jinja2==3.1.6 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
ruamel.yaml==0.18 ; python_version < "3.12" \\
    --hash=sha256:dd
zzz==1 --hash=sha256:ee
"""


@pytest.mark.slow
def test_requirements_that_the_base_has_are_left_out() -> None:
    program = (
        "import sys; from missing_requirements import missing, normalized\n"
        "sys.stdout.write(missing(sys.stdin.read(), {normalized(name) for name in sys.argv[1:]}))"
    )

    def left(*installed: str) -> str:
        words = [sys.executable, "-c", program, *installed]
        return subprocess.run(
            words, input=LOCK, cwd=FOLDER, capture_output=True, text=True, check=True
        ).stdout

    assert left("absl_py", "ruamel-yaml", "zzz") == "".join(LOCK.splitlines(True)[4:7])
    assert left("jinja2", "Absl.Py", "ruamel_yaml") == LOCK.splitlines(True)[-1]
    assert left() == LOCK.partition("\n")[2]
