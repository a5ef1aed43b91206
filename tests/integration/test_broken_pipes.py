"""The queries of the tests are repeated after a broken pipe, and commands that change something are not."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from slurm_cluster import SlurmCluster

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """#!/bin/bash
echo x >> {calls}
[ "$(wc -l < {calls})" -gt {broken} ] || kill -PIPE $$
echo answer
"""


def _slurm(folder: Path, command: str, broken: int, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """Return a cluster whose *command* is ended *broken* times by a broken pipe."""
    (folder / "cluster.json").write_text(json.dumps({"slurm_conf": "/dev/null"}))
    program = folder / command
    program.write_text(PROGRAM.format(calls=folder / "calls", broken=broken))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return SlurmCluster(folder)


def test_queries_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _slurm(tmp_path, "squeue", 2, monkeypatch).slurm("squeue") == "answer"


@pytest.mark.parametrize(("command", "broken", "calls"), [("squeue", 99, 5), ("sbatch", 1, 1)])
def test_others_fail(
    command: str, broken: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        _slurm(tmp_path, command, broken, monkeypatch).slurm(command)
    assert len((tmp_path / "calls").read_text().splitlines()) == calls
