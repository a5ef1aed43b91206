"""``cluster check`` on a real Slurm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from driven_job import environment

from airflow_megatron.cli.setup.cluster_check import FAILED, OK, check_cluster
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.integration, pytest.mark.trainer]


def test_the_local_cluster_is_ready(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
    for name, value in environment(tmp_path, cluster).items():
        monkeypatch.setenv(name, value)
    status = check_cluster("local", with_job=True, patience_s=300, as_json=True)
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert [row for row in rows.values() if row["state"] == FAILED] == []
    assert status == 0
    assert {name for name, row in rows.items() if row["state"] != OK} <= {"GPUs", "checkout"}
    assert {"connection", "accounting", "partition", "job", "torch", "megatron"} <= rows.keys()
    assert not [*(tmp_path / "runs" / "cluster_check").iterdir()]
    assert "cluster_check" not in cluster.slurm("squeue", "-h", "-o", "%j")
