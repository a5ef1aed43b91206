"""The how-tos, executed in a project with the files of the page."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest
from blocks import FENCE, INDENTED
from command_line import runner
from howto_pages import FILE, FOLDER, PAGES, files, write_files

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.plan.sweep_plan import Plan

LOCAL = {"lint", "plan", "render", "diff"}
WARNINGS = {"old_tuning": ["job.base_output_dir", "FileExistsCondition"]}
"""Spec → what its warnings are about; the page explains them."""


def commands(page: str) -> list[list[str]]:
    """Return the commands of a page that need only its files."""
    text = FENCE.sub("", (FOLDER / page).read_text())
    lines = [line for block in INDENTED.findall(text) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    named = [each[1:] for each in words if each[:1] == ["airflow-megatron"] and each[1] in LOCAL]
    return [each for each in named if "OLD" not in each]


def put(page: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files of a page into a project, and work in it."""
    specs = write_files(page, project)
    monkeypatch.setenv("AIRFLOW__MEGATRON__SWEEP_SPECS_FOLDER", str(specs))
    monkeypatch.chdir(project)
    return specs


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(page, tmp_path, monkeypatch)
    run = runner(monkeypatch, capsys)
    for words in commands(page):
        answer = run(*words)
        assert answer.status == 0, f"{words}: {answer.stderr}{answer.stdout}"
        warnings = [line for line in (answer.stderr + answer.stdout).splitlines() if "warning" in line]
        expected = WARNINGS.get(words[1], [])
        assert len(warnings) == len(expected), warnings
        assert all(key in line for key, line in zip(expected, warnings, strict=True)), warnings
        if words[0] == "render":
            assert answer.stdout.startswith("#!/"), words


@pytest.mark.parametrize("page", PAGES)
def test_each_spec_of_a_page_is_checked_by_a_command(page: str) -> None:
    given = files(page).keys() - files("index.md").keys()
    specs = {
        name.removeprefix("sweep_specs/").removesuffix(".yaml") for name in given if name.endswith(".yaml")
    }
    assert specs
    for command in ("lint", "plan"):
        assert specs == {words[1] for words in commands(page) if words[0] == command}


def test_each_yaml_block_is_a_file() -> None:
    for page in ("index.md", *PAGES):
        text = (FOLDER / page).read_text()
        assert len(FILE.findall(text)) == len(re.findall(r"^```(?:yaml|bash)$", text, re.MULTILINE)), page


def plan_of(page: str, name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    return check_sweep(load_sweep(put(page, project, monkeypatch) / f"{name}.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("from-autoexperiment.md", "old_study", "new_study"),
        ("from-oellm-autoexp.md", "old_tuning", "new_tuning"),
    ],
)
def test_the_rewritten_spec_has_the_same_trainings(
    page: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan_of(page, old, tmp_path, monkeypatch)
    after = plan_of(page, new, tmp_path, monkeypatch)
    assert len(before.jobs) == len(after.jobs) > 2
