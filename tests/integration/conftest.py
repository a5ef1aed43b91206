"""One local cluster, and one Airflow beside it, for all integration tests."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))
sys.path.insert(0, str(Path(__file__).parent))

from slurm_cluster import SlurmCluster
from sweep_site import SiteAirflow, SweepSite, processes_naming

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.control("up")
        yield cluster
    finally:
        cluster.control("down", "--purge")
    assert processes_naming(cluster.place) == []


@pytest.fixture(scope="session")
def site(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweepSite]:
    """Folders, specs and connection; Airflow's daemons do not run yet."""
    site = SweepSite(tmp_path_factory.mktemp("site"), cluster)
    site.prepare()
    yield site
    deadline = time.monotonic() + 15
    while (left := processes_naming(site.place)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left == []


@pytest.fixture(scope="session")
def airflow(site: SweepSite) -> Iterator[SiteAirflow]:
    """Scheduler, triggerer, dag processor and API server."""
    try:
        site.airflow.start()
        yield site.airflow
    finally:
        site.airflow.stop()
