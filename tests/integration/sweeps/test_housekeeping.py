"""The records of a sweep on a cluster and in Airflow, archived and deleted with the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from airflow_megatron import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration


def command(site: SweepSite, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "airflow_megatron.cli.app", *words],
        env=site.airflow.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_provenance(site: SweepSite, run_dirs: list[Path]) -> None:
    """Check the records that each attempt wrote on its node, with and without an array."""
    environments = set()
    for run_dir in run_dirs:
        (file,) = run_dir.glob(".jobs/*/1/provenance.json")
        record = json.loads(file.read_text())
        assert record["package"] == __version__
        assert record["host"]
        (checkout, *_) = record["checkouts"]
        assert checkout["path"].endswith("Megatron-LM")
        environments.add(record["environment"])
    (environment,) = environments
    packages = json.loads((site.runs / ".environments" / f"{environment}.json").read_text())["packages"]
    assert any(package.startswith("torch==") for package in packages)


def test_archived_then_deleted(site: SweepSite, airflow: SiteAirflow) -> None:
    for dag_id in ("kept", "kept.point"):
        airflow.wait_for_dag(dag_id)
    airflow.trigger("kept", run_id="all")
    assert airflow.ended("kept", "all") == "success"
    sweep = site.runs / "kept"
    check_provenance(site, [sweep / point / stage for point in "ab" for stage in ("work", "check")])
    command(site, "archive", "kept", "--to", str(site.runs / "kept.tar.gz"), "--cluster", "local")
    with tarfile.open(site.runs / "kept.tar.gz") as archive:
        names = archive.getnames()
    assert any(name.endswith("a/work/.jobs/work/1/job.json") for name in names)
    assert not any("weights" in name for name in names)
    assert any("airflow-megatron/plans/" in name for name in names)
    # a dry run, one point, everything
    listed = command(site, "delete", "kept")
    assert f"{sweep} on local" in listed
    assert (sweep / "a" / "work" / "checkpoints" / "iter_0000010" / "weights").exists()
    runs = airflow.runs_of("kept.point")
    assert len(runs) == 2
    command(site, "delete", "kept", "--select", "a", "--yes")
    assert not (sweep / "a").exists()
    assert (sweep / "b" / "work" / "checkpoints" / "iter_0000010" / "weights").exists()
    assert len(airflow.runs_of("kept.point")) == 1
    command(site, "delete", "kept", "--yes")
    assert not sweep.exists()
    assert not (site.local / "results" / "kept").exists()
    assert airflow.runs_of("kept.point") == airflow.runs_of("kept") == []
    assert (site.runs / "kept.tar.gz").exists()
