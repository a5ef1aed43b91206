"""A site whose Airflow is the distributed engine, with the results on an S3 server."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import psutil
from airflow_storm import AirflowStorm
from faults import WEIGHTS
from faulty_airflow import QUICK_RECOVERY, FaultyAirflow
from patience import wait_until
from proxied_site import ProxiedSite
from spec_repository import SpecRepository
from sweep_site import PATIENCE, PROJECT

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.spec.documents.project import local_dir

sys.path.insert(0, str(PROJECT / "docker"))

from distributed.engine import Engine
from distributed.layout import Layout, Size
from distributed.services import health, service_names
from local_cluster.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

SIZE = Size()
BUCKET = "sweeps"
STORE = f"s3://{BUCKET}/results"
RECOVERY = {
    **QUICK_RECOVERY,
    # tasks of a killed worker or broker
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
}


class DistributedAirflow(FaultyAirflow):
    """The engine of ``docker/distributed``; each service is a daemon that can be killed.

    :param home: folder of the engine
    :param folders: environment variables with the folders of the site
    """

    daemons = tuple(service_names(SIZE))

    def __init__(self, home: Path, folders: dict[str, str]) -> None:
        super().__init__(home, folders)
        self.engine = Engine(Layout.at(home), self.python, print, self.environment())

    @property
    def python(self) -> Path:
        """Interpreter of the environment that the engine runs in."""
        return local_dir() / "venv-distributed" / "bin" / "python"

    def environment(self) -> dict[str, str]:
        return {**os.environ, **PATIENCE, **RECOVERY, **self.folders, "PYTHONPATH": str(PROJECT)}

    def start(self) -> None:
        self.engine.environment = self.environment()
        self.engine.up(SIZE)
        settings = self.engine.layout.saved()
        assert settings is not None
        self.port = settings.ports["api-server"]

    def stop(self) -> None:
        self.engine.down(purge=True)

    @property
    def is_up(self) -> bool:
        return self.engine.layout.description.exists()

    def credentials(self) -> tuple[str, str]:
        user, password = next(iter(json.loads(self.engine.layout.passwords.read_text()).items()))
        return user, password

    def wait_for_dag(self, dag_id: str) -> None:
        def known() -> bool:
            changed = self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})
            details = self._request("GET", f"/dags/{dag_id}/details")
            return changed.status_code == details.status_code == 200

        wait_until(known, 120, f"{dag_id}", interval=2)

    def bundle_version(self, dag_id: str) -> str:
        """Request that the file of a DAG is parsed again; return the bundle version of the last parsed DAG."""
        dag = self._request("GET", f"/dags/{dag_id}").json()
        self._request("PUT", f"/parseDagFile/{dag['file_token']}")
        return str(dag["bundle_version"])

    def wait_until_serving(self) -> None:
        """Wait until the API server and one of each other daemon are ready."""
        settings = self.engine.layout.saved()
        assert settings is not None
        needed = {"metadatabase", "scheduler", "triggerer", "dag_processor"}

        def serving() -> bool:
            states = health(settings)
            return self.supervise() and all(states.get(name) == "healthy" for name in needed)

        wait_until(serving, 120, "Airflow to be healthy", interval=2)

    # ---- daemons

    def daemon(self, name: str) -> psutil.Process:
        pid = self.engine.status().get(name)
        assert pid, f"no {name} runs"
        return psutil.Process(pid)

    def kill_daemon(self, name: str, *, with_children: bool) -> dict[str, str]:
        with suppress(ClusterError):  # it is ending
            self.engine.kill(name, alone=not with_children)
        return {}

    def start_daemon(self, name: str, environment: dict[str, str]) -> None:
        with suppress(ClusterError):  # it ended immediately; the next check starts it again
            self.engine.start(name, wait=False)

    def supervise(self) -> bool:
        """Start each service that has ended, as a site's supervisor does; return whether all ran."""
        ended = [name for name, pid in self.engine.status().items() if not pid]
        for name in ended:
            lines = self.engine.layout.log(name).read_text(errors="replace").splitlines()
            print(f"{name} has ended; the end of its log:", *lines[-8:], sep="\n")
            self.start_daemon(name, {})
        return not ended

    def task_processes(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for name, pid in self.engine.status().items():
            if name.startswith("worker:") and pid:
                with suppress(psutil.NoSuchProcess):
                    below = psutil.Process(pid).children(recursive=True)
                    found |= {process.pid: process.name() for process in below}
        return found


class DistributedSite(ProxiedSite):
    """Folders and connection of a proxied site, the distributed engine, and an S3 server.

    :param place: folder of the site
    :param cluster: a cluster that is up
    """

    airflow: DistributedAirflow

    def __init__(self, place: Path, cluster: SlurmCluster) -> None:
        super().__init__(place, cluster)
        self.s3 = f"http://127.0.0.1:{free_port()}"
        self.folders |= {
            "AIRFLOW__MEGATRON__RESULTS_STORE": STORE,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.s3,
        }
        self.repository = SpecRepository(place / "repository")
        self.folders["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"] = self.repository.bundles()
        self.airflow = DistributedAirflow(place / "engine", self.folders)
        self._server: subprocess.Popen[bytes] | None = None

    def prepare_folders(self) -> None:
        super().prepare_folders()
        self.repository.create()

    def open(self) -> None:
        super().open()
        program = local_dir() / "venv-s3" / "bin" / "moto_server"
        host, port = self.s3.removeprefix("http://").split(":")
        self._server = subprocess.Popen(
            [str(program), "-H", host, "-p", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def bucket() -> bool:
            with suppress(httpx.TransportError):
                return httpx.put(f"{self.s3}/{BUCKET}").status_code in (200, 409)
            return False

        wait_until(bucket, 30, "the S3 server")

    def close(self) -> None:
        if self._server:
            self._server.kill()
            self._server.wait()
        super().close()

    def stored(self, expression: str) -> str:
        """Return the JSON of an expression over ``results``, the loaded store of the sweep ``distributed``."""
        program = (
            "import json, airflow_megatron.results as store\n"
            "results = store.load('distributed')\n"
            f"print(json.dumps({expression}))"
        )
        result = subprocess.run(
            [str(self.airflow.python), "-c", program],
            env=self.airflow.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout


@dataclass
class DistributedStorm(AirflowStorm):
    """Kills all services of the engine."""

    weights: dict[str, int] = field(
        default_factory=lambda: {**WEIGHTS, "kill_triggerer": 0, "kill_service": 6}
    )

    def kill_service(self) -> str | None:
        return self._airflow(self.chance.choice(self.site.airflow.daemons))

    def end(self) -> None:
        super().end()
        airflow = self.site.airflow
        assert isinstance(airflow, DistributedAirflow)
        airflow.wait_until_serving()


def in_random_order(seed: int) -> list[str]:
    """Return all services, in the order in which they are killed."""
    names = list(DistributedAirflow.daemons)
    random.Random(seed).shuffle(names)
    return names
