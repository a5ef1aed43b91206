"""The table of commands: each entry names a real command, and none is imported before it runs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from command_line import Answer, runner

from airflow_megatron import __version__
from airflow_megatron.cli.command_line import COMMANDS, DeferredCommand

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = ("pydantic", "jinja2", "yaml", "airflow", "airflow_megatron.plan", "airflow_megatron.slurm")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_prints_its_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = runner(monkeypatch, capsys)(name, "--help")
    assert answer.status == 0
    assert answer.stdout.startswith(f"Usage: airflow-megatron {name} ")
    assert DeferredCommand(name, COMMANDS[name]).load().help


@pytest.mark.slow
def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys\nsys.argv = ['airflow-megatron', '--help']\n"
        "from airflow_megatron.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


JUDGES = (
    "airflow_megatron.notices",
    "airflow_megatron.slurm.verdicts",
    "airflow_megatron.megatron.logs",
    "airflow",
)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["plan", "--format", "names"], ["lint", "--quiet"]], ids=" ".join)
def test_reading_a_spec_imports_neither_airflow_nor_supervision(words: list[str], tmp_path: Path) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(
        "point: a\nstages: {go: {kind: command, command: [echo, hi]}}\nsweep: {params: {b: [1]}}\nparams: {b: 1}\n"
    )
    code = (
        f"import sys\nsys.argv = ['airflow-megatron', {words[0]!r}, {str(spec)!r}, *{words[1:]!r}]\n"
        "from airflow_megatron.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        f"print([name for name in {JUDGES!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr.strip()) == ("a.go\n" if words[0] == "plan" else "", "[]")


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner(monkeypatch, capsys)("--version") == Answer(0, f"airflow-megatron {__version__}\n", "")


def test_a_misspelt_command_gets_a_near_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = runner(monkeypatch, capsys)("plam")
    assert answer.status == 2
    assert "Did you mean 'plan'?" in answer.stderr
