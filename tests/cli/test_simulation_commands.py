from __future__ import annotations

import json

import pytest

from tests.command_line import runner

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch, capsys):
    return runner(monkeypatch, capsys)


def test_simulation(run, tmp_path):
    words = ["--gpus", "64", "--days", "1", "--seeds", "2", "--policy", "no budgets", "--policy", "by hand"]
    result = run("simulate", *words, "--processes", "2", "--output", str(tmp_path))
    assert result.status == 0, result.stderr
    assert "### 64 GPUs, one training" in result.stdout
    assert "### 64 GPUs, a sweep" in result.stdout
    data = json.loads((tmp_path / "simulation.json").read_text())
    assert [(row["scenario"], row["policy"]) for row in data] == [
        (work, policy) for work in ("training", "sweep") for policy in ("no budgets", "by hand")
    ]
    assert all(len(row["seeds"]) == 2 for row in data)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["hours_sweep.png", "hours_training.png"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--gpus", "100"], "multiple of 8"),
        (["--rate", "0"], "a rate must be positive"),
        (["--rate", "often"], "meta-rsc1"),
        (["--policy", "best"], "no budgets"),
    ],
)
def test_invalid_options_are_reported(run, words, expected):
    result = run("simulate", "--days", "1", "--seeds", "1", *words)
    assert result.status == 2
    assert expected in " ".join(result.stderr.replace("│", " ").split())


def test_check(run):
    result = run("simulate", "--check", "--seeds", "2", "--days", "1")
    assert result.status == 0, result.stderr
    assert result.stdout.count("\n| 16,384 |") == 2
