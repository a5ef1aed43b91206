"""Servers of trackers in the environments of ``make peers``, and stored rows to push to them."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.megatron.logs.iteration_lines import IterationRecord
from airflow_megatron.results.readings.sweep_jobs import SweepJob
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.snapshot_rows import write_batches
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SWEEP = "scaling"
JOBS = (
    SweepJob("scaling.p.trunk", "p", "trunk", "train", "trunk", "/r/p", sweep_params={"lr": 0.001}),
    SweepJob(
        "scaling.p.decay", "p", "decay", "train", "decay", "/r/p/d", "trunk", sweep_params={"lr": 0.001}
    ),
)
BEGAN = 1_795_341_600.0


def peer_python(name: str) -> Path:
    return local_dir() / "peers" / name / "bin" / "python"


@contextmanager
def served(
    command: Sequence[str], url: str, folder: Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends."""
    with (folder / "server.log").open("ab") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "no_proxy": "*", **environment},
        )
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(url, timeout=2).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
                assert time.monotonic() < deadline, (folder / "server.log").read_text()[-3000:]
                time.sleep(0.3)
        yield server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, 15)
        server.wait(30)


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Run an MLflow server until the block ends; give its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        *(str(peer_python("mlflow")), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--default-artifact-root", str(folder / "artifacts")),
    ]
    path = f"{peer_python('mlflow').parent}:/usr/bin:/bin"
    with served(command, f"{url}/health", folder, PATH=path):
        yield url


def mlflow_runs(url: str, project: str) -> dict[str, Any]:
    """Return the runs of an experiment: training → run."""
    found = httpx.get(
        f"{url}/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": project}
    ).json()["experiment"]
    listed = httpx.post(
        f"{url}/api/2.0/mlflow/runs/search", json={"experiment_ids": [found["experiment_id"]]}
    ).json()["runs"]
    tags = [{tag["key"]: tag["value"] for tag in run["data"]["tags"]} for run in listed]
    keys = [each["airflow_megatron.training"] for each in tags]
    assert len(keys) == len(set(keys)), "one run for each training"
    return dict(zip(keys, listed, strict=True))


def mlflow_history(url: str, run: dict[str, Any], metric: str = "loss") -> list[tuple[int, float]]:
    """Return MLflow's values of a metric as (step, value), in the order of its response."""
    answer = httpx.get(
        f"{url}/api/2.0/mlflow/metrics/get-history",
        params={"run_id": run["info"]["run_id"], "metric_key": metric, "max_results": 10000},
    ).json()
    return [(int(each["step"]), each["value"]) for each in answer.get("metrics", ())]


class StoredSweep:
    """A store whose rows a test writes as attempts would."""

    def __init__(self, folder: Path) -> None:
        self.store = SegmentStore(str(folder))

    def log(self, stage: str, attempt: int, numbers: Sequence[int], at: float = BEGAN) -> None:
        source = Source(
            SWEEP, "manual__1", "p", stage, attempt, str(100 + attempt), f"/r/{stage}-{attempt}", 32, 8
        )
        rows = [
            IterationRecord(
                number, 100, 4 * number, losses={"lm loss": loss(number, attempt)}, extra={"params norm": 7}
            )
            for number in numbers
        ]
        write_batches(
            self.store, [Batch("iterations", source, at, rows, [100 * number for number in numbers])]
        )

    def validate(self, stage: str, attempt: int, number: int, value: float, at: float = BEGAN) -> None:
        source = Source(
            SWEEP, "manual__1", "p", stage, attempt, str(100 + attempt), f"/r/{stage}-{attempt}", 32, 8
        )
        row = (number, "validation", None, False, value, "{}", "{}")
        write_batches(self.store, [Batch("validations", source, at, [row], [100 * number + 50])])


def loss(number: int, attempt: int) -> float:
    return 10 - number / 100 + attempt / 1000
