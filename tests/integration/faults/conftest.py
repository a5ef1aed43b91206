"""Sites behind a proxy for the tests of faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent / "storm"))

from proxied_site import ProxiedSite, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_cluster import SlurmCluster


def site_without_airflow(
    cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedSite]:
    """Folders, specs and connection; Airflow is not prepared."""
    site = ProxiedSite(tmp_path_factory.mktemp("proxied"), cluster)
    site.prepare_folders()
    with opened(site):
        yield site


proxied = pytest.fixture(site_without_airflow, name="proxied")
proxied_module = pytest.fixture(site_without_airflow, scope="module", name="proxied_module")


@pytest.fixture(scope="module")
def proxied_airflow(
    cluster: SlurmCluster, migrated_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedSite]:
    """A site whose Airflow runs."""
    site = ProxiedSite(tmp_path_factory.mktemp("proxied"), cluster)
    site.prepare(migrated_home)
    with opened(site):
        try:
            site.airflow.start()
            yield site
        finally:
            site.stop()
