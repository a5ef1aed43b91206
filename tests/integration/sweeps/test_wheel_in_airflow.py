"""The wheel in a stock Airflow: a project created by ``init``, a new spec in it, one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.local.local_connection import local_connections
from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

SPEC = """\
name: dropped
cluster: local
point: "n{{ number }}"
params: {number: null}
sweep: {number: [1, 2]}
slurm: {time: 30m}
stages:
  write:
    kind: command
    command: [sh, -c, "echo {{ number }} >number"]
    outputs: [number]
"""


def environment(place: Path) -> Path:
    """Create an environment with the wheel and the other packages of the tests; return its Python."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(words, cwd=project_root(), check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "environment", symlinks=True)
    (packages,) = (place / "environment").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # as plain folders, which excludes the editable package of the tests
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return place / "environment" / "bin" / "python"


def test_a_new_spec_file_runs(cluster: SlurmCluster, tmp_path: Path) -> None:
    python, home = environment(tmp_path), tmp_path / "home of airflow"
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AIRFLOW") and name != "PYTHONPATH"
    }
    stock = {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SLURM_LOCAL": json.dumps(local_connections(cluster.description)["slurm_local"]),
    }

    def run(*words: str) -> str:
        ended = subprocess.run(
            [python, "-m", *words],
            cwd=tmp_path,
            env=stock,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-4000:]
        return ended.stdout

    run("airflow", "db", "migrate")
    answer = run("airflow_megatron.cli.app", "init", str(home))
    assert "[megatron]" not in answer, "Airflow's own home needs no configuration"
    (home / "sweep_specs" / "dropped.yaml").write_text(SPEC)
    run("airflow", "dags", "test", "dropped")
    numbers = {
        path.parent.parent.name: path.read_text()
        for path in (home / ".local" / "runs" / "dropped").glob("*/write/number")
    }
    assert numbers == {"n1": "1\n", "n2": "2\n"}
    assert "n2" in (home / ".local" / "results" / "dropped" / "jobs.md").read_text()
