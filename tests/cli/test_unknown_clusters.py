"""A misspelt ``cluster:`` is reported at the line that names it, by every command and for every language of specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_line import Answer, runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NATIVE = "name: study\npoint: p\ncluster: locl\nstages:\n  work: {kind: command, command: [echo, done]}\n"
AUTOEXPERIMENT = """\
template: job.sbatch
LR: [1, 2]
name: "s_{LR}"
output_file: "logs/{name}.out"
cmd: "sbatch {sbatch_script}"
sbatch_script: "scripts/{name}.sbatch"
"""
OELLM = """\
job: {name: "m_${backend.megatron.lr}", base_output_dir: "out/${.name}"}
backend:
  class_name: MegatronBackend
  megatron: {num_layers: 2, lr: 1e-3, train_iters: 100, save_interval: 50}
slurm: {sbatch: {nodes: 1, gpus_per_node: 2, time: "01:00:00"}}
sweep: {type: product, groups: [{params: {backend.megatron.lr: [1e-3, 2e-3]}}]}
"""
SIDECAR = "max_jobs: 3\ncluster: locl\n"
MESSAGE = "there is no cluster profile 'locl' (did you mean 'local'?)"
COMMANDS = [("lint",), ("plan",), ("build", "scripts"), ("status",), ("cancel",), ("report",)]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Answer]:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --job-name={name}\necho {LR}\n")
    return runner(monkeypatch, capsys)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_of_a_native_spec(command: tuple[str, ...], call: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(NATIVE)
    answer = call(command[0], "study.yaml", *command[1:])
    assert answer.status == 1
    assert f"study.yaml:3:1: {MESSAGE}" in answer.stdout + answer.stderr


def test_of_a_preset(call: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(NATIVE)
    (tmp_path / "study.yaml").write_text("extends: base.yaml\nname: study\n")
    assert f"base.yaml:3:1: {MESSAGE}" in call("lint", "study.yaml").stdout


@pytest.mark.parametrize("text", [AUTOEXPERIMENT, OELLM], ids=["autoexperiment", "oellm"])
def test_of_a_sidecar(text: str, call: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(text)
    (tmp_path / "study.yaml.airflow.yml").write_text(SIDECAR)
    answer = call("lint", "study.yaml")
    assert f"study.yaml.airflow.yml:2:1: {MESSAGE}" in answer.stdout
    assert answer.status == 1


@pytest.mark.parametrize("text", [NATIVE, AUTOEXPERIMENT, OELLM], ids=["native", "autoexperiment", "oellm"])
def test_of_the_command_line(text: str, call: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(text)
    answer = call("lint", "study.yaml", "--set", "cluster=lcoal")
    assert "--set cluster=lcoal" in answer.stdout
    assert "there is no cluster profile 'lcoal' (did you mean 'local'?)" in answer.stdout
    answer = call("lint", "study.yaml", "--cluster", "lcoal")
    assert "there is no cluster profile 'lcoal' (did you mean 'local'?)" in answer.stdout + answer.stderr


def test_another_cluster_replaces_a_wrong_one(call: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(NATIVE)
    assert call("lint", "study.yaml", "--cluster", "local").status == 0
