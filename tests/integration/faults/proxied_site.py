"""A site whose Airflow connects to the login node through a proxy, with a trainer that computes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from airflow.sdk import Connection
from faulty_airflow import FaultyAirflow
from sweep_site import SweepSite
from tcp_proxy import TcpProxy

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_cluster import SlurmCluster

    from airflow_megatron.spec.model.jobs import Job

CLUSTER = "proxied"
HERE = Path(__file__).resolve().parent


class ProxiedSite(SweepSite):
    """Folders, specs and an SSH connection for fault injection.

    :param place: as in :class:`SweepSite`.
    :param cluster: a running cluster.
    """

    def __init__(self, place: Path, cluster: SlurmCluster) -> None:
        super().__init__(place, cluster)
        server = cluster.description["ssh"]
        self.proxy = TcpProxy(server["port"])
        self.connection = {
            "conn_type": "ssh",
            "host": "127.0.0.1",
            "port": self.proxy.port,
            "login": server["user"],
            "extra": {"key_file": server["key_file"], "host_key": server["host_key"]},
        }
        self.airflow: FaultyAirflow = FaultyAirflow(place / "airflow", self.folders)
        self.folders |= {
            "AIRFLOW_CONN_SLURM_PROXIED": json.dumps(self.connection),
            "FAULTS_TRAINER": str(HERE / "pretend_training.sh"),
        }

    def prepare_folders(self) -> None:
        """Create the folders, with the specs of this folder."""
        super().prepare_folders()
        shutil.copytree(HERE / "clusters", self.place / "project" / "sbatch" / "clusters", dirs_exist_ok=True)
        shutil.rmtree(self.specs)
        shutil.copytree(HERE / "specs", self.specs)

    def open(self) -> None:
        """Create a small file system for the runs."""
        self.runs.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "runs", str(self.runs)], check=True)

    def close(self) -> None:
        """Stop the proxy, and remove the file system."""
        self.proxy.close()
        subprocess.run(["umount", "--lazy", str(self.runs)], check=True)

    def hook(self) -> SlurmHook:
        """Return a hook for the connection through the proxy."""
        return SlurmHook(connection=Connection.from_json(json.dumps(self.connection)))


@contextmanager
def opened(site: ProxiedSite) -> Iterator[ProxiedSite]:
    """Set a site up; tear it down afterwards."""
    site.open()
    try:
        yield site
    finally:
        site.close()


def planned_jobs(site: SweepSite, sweep: str, *settings: str, cluster: str = CLUSTER) -> list[Job]:
    """Return the jobs in the stored plan of one of the site's specs.

    :param settings: ``key=value`` pairs that override values of the spec.
    :param cluster: name of the profile.
    """
    with patch.dict(os.environ, site.folders):
        file = site.specs / f"{sweep}.yaml"
        loaded = load_sweep(file, settings)
        plan = plan_sweep(loaded, load_cluster(cluster))
        pinned = PinnedSweep.stored(loaded, file.read_text(), plan, PlanEnvironment.now(cluster), PinStore())
        return list(pinned.plan().jobs)
