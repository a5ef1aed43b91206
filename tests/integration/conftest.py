"""One local cluster and one Airflow for all integration tests."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))
sys.path.insert(0, str(Path(__file__).parents[1] / "slurm" / "launch"))
sys.path.insert(0, str(Path(__file__).parent))

from slurm_cluster import SlurmCluster
from sweep_site import SiteAirflow, SweepSite, processes_left
from work_groups import group_of

from airflow_megatron.cli.local.local_airflow import LocalAirflow

if TYPE_CHECKING:
    from collections.abc import Iterator

SITE = pytest.StashKey[SweepSite]()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.control("up")
        yield cluster
    finally:
        cluster.control("down", "--purge")
    assert processes_left(cluster.place) == []


@pytest.fixture(scope="session")
def migrated_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Airflow home with a database, which the workers of a test run create once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    home, made = folder / "migrated", folder / "migrated.made"
    with (folder / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            LocalAirflow(home).prepare_database()
            made.touch()
    return home


@pytest.fixture(scope="session")
def site(
    cluster: SlurmCluster,
    migrated_home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[SweepSite]:
    """Folders, specs and connection; Airflow's daemons do not run yet."""
    site = SweepSite(tmp_path_factory.mktemp("site"), cluster)
    site.prepare(migrated_home)
    pytestconfig.stash[SITE] = site
    try:
        yield site
    finally:
        site.stop()
    assert processes_left(site.place) == []


@pytest.fixture(scope="module")
def airflow(site: SweepSite) -> SiteAirflow:
    """Scheduler, triggerer, dag processor and API server; they continue for the other files of the group."""
    if not site.airflow.is_up:
        site.airflow.start()
    return site.airflow


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop Airflow after the last test of a group, because it uses a sixth of a core even when it is idle."""
    site = item.config.stash.get(SITE, None)
    if site and (nextitem is None or group_of(nextitem.nodeid) != group_of(item.nodeid)):
        site.airflow.stop()
