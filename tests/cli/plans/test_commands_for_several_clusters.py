"""Commands for a spec with several clusters work on all of them, or require the choice of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_line import Answer, runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = """\
name: spread
cluster: [local, example-slurm]
point: "p{{ x }}"
sweep: {x: [1, 2]}
stages:
  work: {kind: command, command: [work], slurm: {time: 5m}}
"""


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Answer]:
    (tmp_path / "spread.yaml").write_text(SPEC)
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)


def test_lint_checks_all_clusters(call: Callable[..., Answer]) -> None:
    answer = call("lint", "spread.yaml")
    assert answer.status == 0
    first, second = answer.stdout.splitlines()[-2:]
    assert first.endswith(", on local")
    assert second.endswith(", on example-slurm")


def test_lint_finds_what_is_wrong_on_one_cluster(call: Callable[..., Answer]) -> None:
    answer = call("lint", "spread.yaml", "--set", "cluster=[local, exmaple-slurm]")
    assert answer.status == 1
    assert "there is no cluster profile 'exmaple-slurm'" in answer.stdout


def test_plan_shows_a_plan_for_each_cluster(call: Callable[..., Answer]) -> None:
    answer = call("plan", "spread.yaml")
    assert answer.status == 0
    assert "spread on local" in answer.stdout
    assert "spread on example-slurm" in answer.stdout
    assert call("plan", "spread.yaml", "--format", "names").stdout.split() == ["p1.work", "p2.work"]


@pytest.mark.parametrize("words", [["plan", "--format", "json"], ["render"], ["diff"]])
def test_commands_that_show_one_plan_require_a_cluster(call: Callable[..., Answer], words: list[str]) -> None:
    more = {"render": ["p1.work"], "diff": ["spread.yaml"]}.get(words[0], [])
    answer = call(words[0], "spread.yaml", *more, *words[1:])
    assert answer.status != 0
    assert "spread.yaml:2:1: spread names several clusters (local, example-slurm)" in answer.stderr
    for chosen in (["--cluster", "local"], ["--set", "cluster=local"]):
        if words[0] != "diff" or chosen[0] == "--cluster":
            assert call(words[0], "spread.yaml", *more, *words[1:], *chosen).status == 0
