"""The distributed engine, once for all its tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from distributed_site import DistributedSite
from proxied_site import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_cluster import SlurmCluster


@pytest.fixture(scope="module")
def distributed_site(
    cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DistributedSite]:
    """A site whose Airflow runs."""
    site = DistributedSite(tmp_path_factory.mktemp("distributed"), cluster)
    site.prepare_folders()
    with opened(site):
        try:
            site.airflow.start()
            yield site
        finally:
            site.airflow.stop()
