"""The wheel, unpacked outside of any checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.documents.shipped_files import FOLDERS, PACKAGE_DATA

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = project_root()
VENDOR = "airflow_megatron/ui/static/vendor/"
"""Fetched when the wheel is built."""
HELP = """
import json, sys
from typing import cast
from typer.core import TyperGroup
from typer.main import get_command
from airflow_megatron.cli.app import app
from airflow_megatron.cli.command_line import add_commands
from airflow_megatron.spec.documents.shipped_files import checkout
from airflow_megatron.ui.registered_plugin import is_registered

assert checkout() is None
group = cast("TyperGroup", get_command(app))
add_commands(group)
helps = {}

def walk(command, words, parent):
    context = command.make_context(words[-1], [], parent=parent, resilient_parsing=True)
    helps[" ".join(words)] = context.command.get_help(context)
    for name, inner in sorted(getattr(context.command, "commands", {}).items()):
        walk(inner, [*words, name], context)

walk(group, ["airflow-megatron"], None)
print(json.dumps({"helps": helps, "plugin": is_registered()}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs Python with the wheel's package, in an empty folder."""
    place = tmp_path_factory.mktemp("elsewhere")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = {**kept, "PYTHONPATH": str(place / "site"), "AIRFLOW_HOME": str(place / "airflow")}
    (place / "empty").mkdir()

    def call(*words: str, status: int = 0, stream: str = "stdout") -> str:
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=place / "empty",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == status, ended.stderr
        return str(getattr(ended, stream))

    return call


@pytest.mark.slow
def test_the_wheel_holds_every_file_that_runs(wheel: Path) -> None:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--"]
    listed = subprocess.run(
        [*words, "airflow_megatron", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    present = [name for name in listed if (ROOT / name).is_file()]
    expected = {
        name if name.startswith("airflow_megatron/") else f"airflow_megatron/{PACKAGE_DATA}/{name}"
        for name in present
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    fetched = {name for name in held if name.startswith(VENDOR)}
    assert {f"{VENDOR}uplot/{name}" for name in ("uPlot.iife.min.js", "uPlot.min.css", "LICENSE")} <= fetched
    assert held - fetched == expected
    assert "airflow_megatron/py.typed" in held


@pytest.mark.slow
def test_an_editable_package_copies_no_folder(tmp_path: Path) -> None:
    code = f"import hatchling.build as build; build.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        held = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert [archive.read(name).decode().strip() for name in held] == [str(ROOT)]


@pytest.mark.slow
def test_every_command_has_a_help_text(run: Callable[..., str]) -> None:
    answer = json.loads(run("-c", HELP))
    assert answer["plugin"] is True
    helps = answer["helps"]
    assert {"airflow-megatron init", "airflow-megatron cluster install"} <= helps.keys()
    assert len(helps) >= 25
    for command, text in helps.items():
        assert f"Usage: {command}" in text, command
    assert "Usage: " in run("-m", "airflow_megatron.cli.app", "--help")


@pytest.mark.slow
def test_commands_work_without_a_checkout(run: Callable[..., str]) -> None:
    cli = ("-m", "airflow_megatron.cli.app")
    linted = run(*cli, "lint", "quickstart", "scaling_exps")
    assert "quickstart: 4 points, 37 jobs" in linted
    script = run(*cli, "render", "quickstart", "S_lr0.001.pretrain")
    assert f"{PACKAGE_DATA}/Megatron-LM/pretrain_gpt.py" in script
    page = re.search(r"[(]([^)]*lumi-g[.]md)[)]", run(*cli, "init", "project", "--site", "lumi-g"))
    assert page is not None
    assert Path(page[1]).is_file()
    assert "not up: " in run(*cli, "cluster", "status", status=3)
    missing = run(*cli, "status", "quickstart", status=1, stream="stderr")
    assert "airflow-megatron init DIR --local-cluster, or airflow-megatron ui" in missing
